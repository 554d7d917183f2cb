"""A headless Chromium: pictures of a page at a given width, and what it says of its own layout.

A page stands in a frame of the wanted width, since a window of Chromium is never narrower than 500 pixels.
Nothing is downloaded; without a browser on the machine `find` returns nothing.
"""

import html
import json
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-extensions",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--allow-file-access-from-files",
    "--force-color-profile=srgb",
)
FRAME = """<!doctype html><meta charset="utf-8"><style>html,body{margin:0;background:#fff}
iframe{border:0;display:block;width:%(width)dpx;height:%(height)dpx}</style>
<iframe src="%(page)s"></iframe>%(more)s"""
PROBE = """<script>
addEventListener("load",function(){
  var wide=[];
  document.querySelectorAll("body *").forEach(function(e){
    var r=e.getBoundingClientRect(),s=e.closest(".scroll,nav,pre");
    if(!s&&r.width>0&&r.right>innerWidth+1){wide.push(e.tagName+"."+(e.getAttribute("class")||""));}
  });
  var small=[];
  document.querySelectorAll("svg text").forEach(function(e){
    var r=e.getBoundingClientRect();
    if(r.height>0&&r.height<10){small.push(e.textContent);}
  });
  var hero=document.getElementById("answer"),seen={};
  if(hero){
    hero.querySelectorAll("h1,.interval,.chips,.tiles,.why,.run").forEach(function(e){
      var name=e.tagName==="H1"?"h1":e.className.split(" ")[0];
      if(!(name in seen)){seen[name]=Math.round(e.getBoundingClientRect().bottom);}
    });
  }
  parent.postMessage({height:document.documentElement.scrollHeight,width:document.documentElement.scrollWidth,
    inner:innerWidth,wide:wide.slice(0,9),small:small.slice(0,9),seen:seen,
    ground:getComputedStyle(document.body).backgroundColor,
    buttons:document.querySelectorAll("th button").length},"*");
});
</script>"""
LISTEN = """<pre id="found"></pre><script>
addEventListener("message",function(e){document.getElementById("found").textContent=JSON.stringify(e.data);});
</script>"""


def find():
    """The path of a browser, None where there is none; `CHROMIUM` names one."""
    named = os.environ.get("CHROMIUM")
    if named and Path(named).is_file():
        return named
    return next((path for name in NAMES if (path := shutil.which(name))), None)


def _run(browser, folder, *words, timeout=120):
    # Rendered pages depend on nothing outside: no host name resolves.
    flags = [*FLAGS, f"--user-data-dir={folder}/profile", "--host-resolver-rules=MAP * ~NOTFOUND"]
    done = subprocess.run([browser, *flags, *words], capture_output=True, text=True, timeout=timeout)
    if done.returncode:
        raise RuntimeError(f"the browser ended with {done.returncode}: {done.stderr[-400:]}")
    return done.stdout


def _framed(folder, page, width, height, *, more=""):
    frame = Path(folder) / "frame.html"
    frame.write_text(FRAME % {"width": width, "height": height, "page": page.as_uri(), "more": more})
    return frame.as_uri()


def _scheme(dark):
    return (
        ["--blink-settings=preferredColorScheme=0"] if dark else ["--blink-settings=preferredColorScheme=1"]
    )


def look(browser, page, width, height=900, *, dark=False):
    """What a page says of itself at this width: its height, what sticks out, letters that are too small."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "page.html"
        copy.write_text(Path(page).read_text(encoding="utf-8").replace("</body>", PROBE + "</body>"))
        uri = _framed(folder, copy, width, height, more=LISTEN)
        words = [f"--window-size={max(500, width)},{height}", "--virtual-time-budget=4000", "--dump-dom", uri]
        dom = _run(browser, folder, *_scheme(dark), *words)
    reported = re.search(r'<pre id="found">(.*?)</pre>', dom, re.DOTALL)
    if not reported or not reported.group(1):
        raise RuntimeError("the page said nothing of itself")
    return json.loads(html.unescape(reported.group(1)))


def shoot(browser, page, out, width, height, *, dark=False, scale=1):
    """A picture of a page in a window of this size."""
    with tempfile.TemporaryDirectory() as folder:
        uri = _framed(folder, Path(page).absolute(), width, height)
        shot = Path(folder) / "shot.png"
        words = [f"--window-size={width},{height}", f"--force-device-scale-factor={scale}"]
        words += ["--virtual-time-budget=4000", f"--screenshot={shot}", uri]
        _run(browser, folder, *_scheme(dark), *words)
        shutil.move(shot, out)


def print_pdf(browser, page, out):
    """The page as it prints."""
    with tempfile.TemporaryDirectory() as folder:
        pdf = Path(folder) / "page.pdf"
        words = ["--no-pdf-header-footer", f"--print-to-pdf={pdf}", Path(page).absolute().as_uri()]
        _run(browser, folder, *words)
        shutil.move(pdf, out)
