"use strict";
(function () {
  var list = document.getElementById("events");
  if (!list || !list.dataset.follow) { return; }
  var seen = Number(list.dataset.last);
  var source = new EventSource(list.dataset.follow);
  function put(id, text) {
    var element = document.getElementById(id);
    if (element && text !== undefined) { element.textContent = text; }
  }
  function gain(data) {
    var ends = (data.interval || []).map(function (end) { return end === null ? "\u221e" : end.toFixed(2); });
    return data.speedup.toFixed(2) + "x" + (ends.length ? " [" + ends.join(", ") + "]" : "") + " " + data.config;
  }
  function row(trial) {
    var line = document.createElement("tr");
    var result = trial.failure || (trial.speedup ? gain(trial).replace(" " + trial.config, "") : "measured");
    [trial.number, trial.stage, result].forEach(function (text, column) {
      var cell = document.createElement("td");
      cell.textContent = text;
      if (column === 0) { cell.className = "number"; }
      line.append(cell);
    });
    var config = document.createElement("td");
    var code = document.createElement("code");
    code.textContent = trial.config;
    config.append(code);
    line.append(config);
    document.getElementById("trial-rows").append(line);
  }
  function show(event) {
    if (Number(event.lastEventId) <= seen) { return; }
    seen = Number(event.lastEventId);
    var data = JSON.parse(event.data);
    put("headline", data.headline);
    put("trials", data.trials);
    put("failed", data.failed);
    put("stage", data.stage);
    if (data.speedup) { put("best", gain(data)); }
    if (data.kind === "trial") { row(data.trial); return; }
    if (data.kind !== "progress") { put("state", data.kind); put("reason", data.reason); }
    var item = document.createElement("li");
    var time = document.createElement("time");
    time.textContent = new Date(1000 * data.at_s).toLocaleTimeString();
    var kind = document.createElement("b");
    kind.textContent = data.kind;
    item.append(time, " ", kind, " ", data.reason || data.headline || "");
    list.append(item);
  }
  ["queued", "starting", "running", "progress", "trial", "cancelling", "preempting", "succeeded", "failed", "cancelled"]
    .forEach(function (kind) { source.addEventListener(kind, show); });
  source.addEventListener("end", function () { source.close(); location.reload(); });
})();
