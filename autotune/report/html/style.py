"""How the report looks: colours for light and dark, one stylesheet, and the little script that sorts tables.

Everything stands inside the page: no font, script, picture or style is ever fetched.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

LIGHT: Final[Mapping[str, str]] = {
    "page": "#f5f6f8",
    "card": "#ffffff",
    "sunk": "#eef1f5",
    "ink": "#161b22",
    "soft": "#525d6b",
    "line": "#d5dbe3",
    "grid": "#e6eaef",
    "link": "#0b57b0",
    "best": "#0b7350",
    "safe": "#1f5fae",
    "fastest": "#84369f",
    "script": "#47525f",
    "other": "#7d8896",
    "bad": "#b3261e",
    "good": "#0b7350",
    "warn": "#8a5300",
    "bestwash": "#e3f4ec",
    "warnwash": "#fdf2dc",
    "badwash": "#fbe9e7",
    "refine": "#7f8ea3",
    "confirm": "#0b7350",
    "ablate": "#b07415",
    "initial": "#4c7fc4",
}
"""Colours by role, on light ground."""

DARK: Final[Mapping[str, str]] = {
    "page": "#0e1217",
    "card": "#161c24",
    "sunk": "#1f2731",
    "ink": "#e9edf2",
    "soft": "#a9b4c1",
    "line": "#303a47",
    "grid": "#252e39",
    "link": "#83b9ff",
    "best": "#4fcf9f",
    "safe": "#83b4f5",
    "fastest": "#d6a3ee",
    "script": "#c3ccd7",
    "other": "#7c8898",
    "bad": "#ff9a90",
    "good": "#4fcf9f",
    "warn": "#f0bf6c",
    "bestwash": "#12302a",
    "warnwash": "#34290f",
    "badwash": "#3a1d1b",
    "refine": "#76869c",
    "confirm": "#4fcf9f",
    "ablate": "#d9a24a",
    "initial": "#6d9fe6",
}
"""The same on dark ground."""

TEXT_PAIRS: Final = (
    ("ink", "page"),
    ("ink", "card"),
    ("ink", "sunk"),
    ("soft", "page"),
    ("soft", "card"),
    ("soft", "sunk"),
    ("link", "card"),
    ("link", "page"),
    ("best", "card"),
    ("best", "bestwash"),
    ("ink", "bestwash"),
    ("soft", "bestwash"),
    ("safe", "card"),
    ("fastest", "card"),
    ("script", "card"),
    ("bad", "card"),
    ("bad", "badwash"),
    ("ink", "badwash"),
    ("soft", "badwash"),
    ("warn", "card"),
    ("warn", "warnwash"),
    ("ink", "warnwash"),
    ("good", "card"),
)
"""Every (text, ground) that the page puts together; contrast of each is at least 4.5 (WCAG 2.2, 1.4.3)."""

MARK_PAIRS: Final = (
    ("best", "card"),
    ("safe", "card"),
    ("fastest", "card"),
    ("script", "card"),
    ("bad", "card"),
    ("refine", "card"),
    ("confirm", "card"),
    ("ablate", "card"),
    ("initial", "card"),
    ("other", "card"),
)
"""Marks that carry meaning, and their ground; contrast of each is at least 3 (WCAG 2.2, 1.4.11)."""

_RULES = """
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%;scroll-behavior:smooth;scroll-padding-top:60px}
@media (prefers-reduced-motion:reduce){html{scroll-behavior:auto}}
body{margin:0;background:var(--page);color:var(--ink);font:16px/1.55 system-ui,-apple-system,"Segoe UI",
Roboto,"Helvetica Neue",Arial,sans-serif;font-variant-numeric:tabular-nums}
.wrap{max-width:1080px;margin:0 auto;padding:0 24px}
a{color:var(--link);text-underline-offset:2px}
a:focus-visible,button:focus-visible,summary:focus-visible,[tabindex]:focus-visible{
outline:3px solid var(--link);
outline-offset:2px;border-radius:4px}
.skip{position:absolute;left:-999em;top:8px;background:var(--card);padding:8px 14px;border-radius:8px;
z-index:9}
.skip:focus{left:12px}
h1,h2,h3{line-height:1.2;text-wrap:balance;margin:0}
h2{font-size:1.32rem;letter-spacing:-.01em;margin-bottom:4px}
h3{font-size:1.02rem;margin:26px 0 6px}
p{margin:8px 0}
.soft{color:var(--soft)}
.small{font-size:.875rem}
code,pre,kbd{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,"Liberation Mono",monospace;
font-size:.9em}
header.top{display:flex;flex-wrap:wrap;gap:4px 18px;align-items:baseline;padding:22px 0 12px;font-size:.9rem;
color:var(--soft)}
header.top strong{color:var(--ink)}
nav.toc{position:sticky;top:0;z-index:5;background:var(--page);border-bottom:1px solid var(--line)}
nav.toc ul{list-style:none;display:flex;gap:1px;margin:0 auto;padding:6px 20px;max-width:1080px;
overflow-x:auto;
scrollbar-width:thin}
nav.toc a{display:block;padding:5px 8px;border-radius:999px;color:var(--soft);text-decoration:none;
font-size:.86rem;white-space:nowrap}
nav.toc a:hover{background:var(--sunk);color:var(--ink)}
section,.hero{background:var(--card);border:1px solid var(--line);border-radius:14px;padding:26px 28px;
margin:18px 0}
.hero{padding:24px 32px 22px}
.hero .verdict{display:grid;grid-template-columns:minmax(0,5fr) minmax(0,6fr);gap:10px 36px;
align-items:center}
.hero h1{font-size:clamp(2.3rem,6.2vw,3.7rem);letter-spacing:-.035em;font-weight:750;line-height:1.02}
.hero h1 .unit{font-size:.44em;letter-spacing:-.01em;font-weight:650;display:inline-block;margin-left:.12em}
.hero.none h1,.hero.broken h1{font-size:clamp(1.6rem,4.4vw,2.3rem);letter-spacing:-.02em;line-height:1.12}
.hero.found h1{color:var(--best)}
.hero.broken h1{color:var(--bad)}
.interval{font-size:1.06rem;margin:10px 0 0}
.interval b{font-weight:650}
.chips{list-style:none;display:flex;flex-wrap:wrap;gap:8px;margin:14px 0 4px;padding:0}
.chips li{background:var(--bestwash);border-radius:10px;padding:7px 12px;line-height:1.3}
.chips .knob{display:block;font-size:.78rem;color:var(--soft)}
.chips .was{color:var(--soft)}
.chips .to{font-weight:650}
.chips .gain{color:var(--best);font-weight:650;font-size:.86rem;margin-left:6px}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(215px,1fr));gap:12px;margin:18px 0 6px}
.tile{background:var(--sunk);border-radius:12px;padding:10px 16px 11px}
.tile dt{font-size:.8rem;color:var(--soft)}
.tile dd{margin:2px 0 0;font-size:1.16rem;font-weight:640;line-height:1.3}
.tile dd small{display:block;font-size:.84rem;font-weight:400;color:var(--soft);margin-top:2px}
.arrow{color:var(--soft);font-weight:400}
.why{margin:6px 0 0;padding:0;list-style:none}
.why li{padding-left:1.3em;position:relative;margin:5px 0}
.why li::before{content:"";position:absolute;left:2px;top:.62em;width:7px;height:7px;border-radius:50%;
background:var(--best)}
.none .why li::before,.broken .why li::before{background:var(--soft)}
.run{display:flex;align-items:stretch;gap:0;background:var(--sunk);border:1px solid var(--line);
border-radius:10px;
margin:10px 0;overflow:hidden}
.run pre{margin:0;padding:11px 14px;overflow-x:auto;flex:1;white-space:pre-wrap;overflow-wrap:anywhere}
.run button{border:0;border-left:1px solid var(--line);background:transparent;color:var(--link);font:inherit;
font-size:.86rem;padding:0 16px;cursor:pointer}
.run button:hover{background:var(--card)}
.run button:focus-visible{outline-offset:-3px}
.lead{font-weight:640;margin:14px 0 0}
.note{border-left:4px solid var(--warn);background:var(--warnwash);border-radius:0 10px 10px 0;
padding:10px 16px;
margin:14px 0}
.note.bad{border-color:var(--bad);background:var(--badwash)}
.note ul{margin:4px 0;padding-left:1.2em}
.note p{margin:3px 0}
.tag{display:inline-block;font-size:.76rem;font-weight:650;padding:1px 8px;border-radius:999px;
border:1px solid currentColor;white-space:nowrap}
.tag.best,.tag.pass{color:var(--best)}.tag.safe{color:var(--safe)}.tag.fastest{color:var(--fastest)}
.tag.script,.tag.plain{color:var(--script)}.tag.fail{color:var(--bad)}.tag.unclear{color:var(--warn)}
.scroll{overflow-x:auto;margin:12px 0;border-radius:8px}
table{border-collapse:collapse;width:100%;font-size:.9rem}
caption{text-align:left;color:var(--soft);font-size:.86rem;padding:0 0 8px}
th,td{text-align:left;vertical-align:top;padding:8px 12px 8px 0;border-bottom:1px solid var(--line)}
thead th{color:var(--soft);font-weight:600;font-size:.82rem;white-space:nowrap;vertical-align:bottom}
tbody th{font-weight:600}
td.n,th.n{text-align:right;white-space:nowrap;padding-right:18px}
th button{all:unset;cursor:pointer;border-radius:4px}
th button:focus-visible{outline:3px solid var(--link);outline-offset:2px}
th[aria-sort=ascending] button::after{content:" \\2191"}
th[aria-sort=descending] button::after{content:" \\2193"}
.nowrap{white-space:nowrap}
.cfg{min-width:15em}
figure{margin:14px 0 6px}
figcaption{font-size:.86rem;color:var(--soft);margin-top:6px}
svg{display:block;width:100%;height:auto;overflow:visible}
.slim{display:none}
.legend{display:flex;flex-wrap:wrap;gap:4px 18px;list-style:none;margin:8px 0 0;padding:0;font-size:.84rem;
color:var(--soft)}
.legend svg{display:inline-block;width:16px;height:14px;vertical-align:-2px;margin-right:6px}
svg text{font-family:inherit;font-size:12px;fill:var(--soft)}
svg text.strong{fill:var(--ink);font-weight:640}
svg text.ink{fill:var(--ink)}
svg text.halo{paint-order:stroke;stroke:var(--card);stroke-width:4px;stroke-linejoin:round}
svg .grid{stroke:var(--grid);stroke-width:1;fill:none}
svg .axis{stroke:var(--line);stroke-width:1;fill:none}
svg .one{stroke:var(--script);stroke-width:1.4;stroke-dasharray:4 4;fill:none}
svg .front{stroke:var(--best);stroke-width:1.6;stroke-opacity:.55;fill:none}
svg .link{stroke:var(--line);stroke-width:2;fill:none}
svg .best{fill:var(--best);stroke:var(--best)}svg .safe{fill:var(--safe);stroke:var(--safe)}
svg .fastest{fill:var(--fastest);stroke:var(--fastest)}svg .script{fill:var(--script);stroke:var(--script)}
svg .other{fill:var(--other);stroke:var(--other)}svg .bad{fill:var(--bad);stroke:var(--bad)}
svg .baseline{fill:var(--script);stroke:var(--script)}svg .initial{fill:var(--initial);stroke:var(--initial)}
svg .refine{fill:var(--refine);stroke:var(--refine)}svg .confirm{fill:var(--confirm);stroke:var(--confirm)}
svg .ablate{fill:var(--ablate);stroke:var(--ablate)}
svg rect:not(.stroke){stroke:none}
svg .hollow{fill:var(--card);stroke-width:1.8}
svg .faint{opacity:.5}
svg .whisker.faint{opacity:.75}
svg .guess{stroke-dasharray:2 4}
svg .wash{opacity:.2;stroke:none}
svg .stroke{fill:none;stroke-width:2}
svg .thin{fill:none;stroke-width:1;opacity:.3}
svg .whisker{fill:none;stroke-width:2.2;stroke-linecap:round}
svg text.best,svg text.safe,svg text.fastest,svg text.script,svg text.bad{stroke:none;font-weight:640}
svg text.halo.best,svg text.halo.safe,svg text.halo.fastest,svg text.halo.script{stroke:var(--card)}
details{margin:10px 0}
section>details>summary{font-size:1.15em;font-weight:600;cursor:pointer}
summary{cursor:pointer;font-weight:600;padding:4px 0}
details pre{background:var(--sunk);border-radius:8px;padding:12px 14px;overflow-x:auto;white-space:pre-wrap;
overflow-wrap:anywhere;margin:6px 0 12px;font-size:.82rem}
dl.env{display:grid;grid-template-columns:max-content minmax(0,1fr);gap:5px 22px;margin:10px 0}
dl.env dt{color:var(--soft)}
dl.env dd{margin:0;overflow-wrap:anywhere}
footer{color:var(--soft);font-size:.84rem;padding:10px 0 50px}
@media (max-width:700px){
body{font-size:15.5px}
.wrap{padding:0 12px}
nav.toc ul{padding:6px 8px}
section,.hero{padding:18px 16px;border-radius:12px;margin:12px 0}
.hero .verdict{grid-template-columns:minmax(0,1fr)}
.wide{display:none}.slim{display:block}
.tiles{grid-template-columns:repeat(2,minmax(0,1fr));gap:8px}
.tile{padding:10px 12px}.tile dd{font-size:1.02rem}.tile .nowrap{white-space:normal}
.run{flex-direction:column}.run button{border-left:0;border-top:1px solid var(--line);padding:9px}
dl.env{grid-template-columns:minmax(0,1fr);gap:0}dl.env dd{margin-bottom:8px}
table.cards thead{position:absolute;left:-999em;visibility:hidden}
table.cards tr{display:block;border-bottom:1px solid var(--line);padding:8px 0}
table.cards td,table.cards th{display:flex;justify-content:space-between;gap:14px;border:0;padding:3px 0;
text-align:right;white-space:normal;min-width:0}
table.cards td::before{content:attr(data-label);color:var(--soft);text-align:left;flex:none}
table.cards tbody th{text-align:left;font-size:1rem}
table.cards td:empty{display:none}
.cfg{min-width:0}
}
@media print{
:root{color-scheme:light}
body{background:#fff;font-size:10.5pt}
nav.toc,.skip,.run button{display:none}
.wrap{max-width:none;padding:0}
section,.hero{border:0;border-top:1px solid var(--line);border-radius:0;padding:12px 0;margin:0}
.wide{display:block}.slim{display:none}
figure,table,.tiles,.note,.run,tr{break-inside:avoid}
h2,h3,h2+p,h3+p{break-after:avoid}
.scroll{overflow:visible}
*{print-color-adjust:exact;-webkit-print-color-adjust:exact}
}
"""

SCRIPT: Final = """
"use strict";
document.querySelectorAll("table.sorts").forEach(function(table){
  table.querySelectorAll("thead th").forEach(function(head,column){
    var button=document.createElement("button");
    button.type="button";
    while(head.firstChild){button.appendChild(head.firstChild);}
    head.appendChild(button);
    button.addEventListener("click",function(){
      var down=head.getAttribute("aria-sort")==="ascending";
      table.querySelectorAll("thead th").forEach(function(h){h.removeAttribute("aria-sort");});
      head.setAttribute("aria-sort",down?"descending":"ascending");
      var body=table.tBodies[0];
      var rows=Array.prototype.slice.call(body.rows);
      var key=function(row){
        var cell=row.cells[column],v=cell.getAttribute("data-v"),text=v===null?cell.textContent:v;
        return text===""||isNaN(text)?text:Number(text);
      };
      rows.sort(function(a,b){
        var x=key(a),y=key(b);
        if(x===""||y===""){return x===y?0:x===""?1:-1;}
        var order=typeof x==="number"&&typeof y==="number"?x-y:String(x).localeCompare(String(y));
        return down?-order:order;
      });
      rows.forEach(function(row){body.appendChild(row);});
    });
  });
});
document.querySelectorAll(".run").forEach(function(box){
  if(!navigator.clipboard){return;}
  var button=document.createElement("button");
  button.type="button";
  button.textContent="Copy";
  button.setAttribute("aria-label","Copy the command");
  button.addEventListener("click",function(){
    navigator.clipboard.writeText(box.querySelector("code").textContent).then(function(){
      button.textContent="Copied";
      setTimeout(function(){button.textContent="Copy";},1600);
    });
  });
  box.appendChild(button);
});
window.addEventListener("beforeprint",function(){
  document.querySelectorAll("details").forEach(function(d){d.open=true;});
});
"""
"""Sorting by a column, copying a command, unfolding before printing. The page can be read without it."""


def stylesheet() -> str:
    """The page's only stylesheet."""
    light = ";".join(f"--{name}:{colour}" for name, colour in LIGHT.items())
    dark = ";".join(f"--{name}:{colour}" for name, colour in DARK.items())
    return (
        f":root{{color-scheme:light dark;{light}}}\n"
        f"@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}{_RULES}"
    )


def contrast(one: str, other: str) -> float:
    """Contrast ratio of two colours ``#rrggbb``, 1 to 21.

    Source: WCAG 2.2, definitions of contrast ratio and relative luminance,
    https://www.w3.org/TR/WCAG22/#dfn-contrast-ratio
    """
    high, low = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def _luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    r, g, b = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b
