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
  function show(event) {
    if (Number(event.lastEventId) <= seen) { return; }
    seen = Number(event.lastEventId);
    var data = JSON.parse(event.data);
    put("headline", data.headline);
    put("trials", data.trials);
    if (data.kind !== "progress") { put("state", data.kind); put("reason", data.reason); }
    var item = document.createElement("li");
    var time = document.createElement("time");
    time.textContent = new Date(1000 * data.at_s).toLocaleTimeString();
    var kind = document.createElement("b");
    kind.textContent = data.kind;
    item.append(time, " ", kind, " ", data.reason || data.headline || "");
    list.append(item);
  }
  ["queued", "starting", "running", "progress", "cancelling", "preempting", "succeeded", "failed", "cancelled"]
    .forEach(function (kind) { source.addEventListener(kind, show); });
  source.addEventListener("end", function () { source.close(); location.reload(); });
})();
