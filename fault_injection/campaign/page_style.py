"""How a page looks: on screens from 390 pixels on, in the dark, and in print."""

STYLE = """
:root { color-scheme: light dark; --text: #1f2328; --faint: #59636e; --line: #d1d9e0; --shade: #f6f8fa; --link: #0969da;
  --back: #ffffff; --shadow: rgba(31, 35, 40, .28) }
@media (prefers-color-scheme: dark) {
  :root { --text: #e6edf3; --faint: #9198a1; --line: #3d444d; --shade: #151b23; --link: #4493f8; --back: #0d1117;
    --shadow: rgba(230, 237, 243, .28) }
}
* { box-sizing: border-box }
body { font: 16px/1.55 system-ui, sans-serif; max-width: 72rem; margin: 0 auto; padding: 1.5rem 1rem 4rem;
  color: var(--text); background: var(--back); overflow-wrap: anywhere }
h1 { font-size: 1.7rem; line-height: 1.25; margin: 0 0 1rem }
h2 { font-size: 1.25rem; margin: 2.8rem 0 .6rem; padding-top: .8rem; border-top: 1px solid var(--line) }
h3 { font-size: 1rem; margin: 1.4rem 0 .3rem }
p { margin: .6rem 0; max-width: 46rem }
a { color: var(--link) }
nav ul { list-style: none; margin: 1.5rem 0; padding: 0; columns: 12rem; font-size: .9rem }
.summary { background: var(--shade); border-left: 4px solid #d55e00; padding: .6rem 1.1rem; max-width: 58rem }
.summary h2 { border: 0; margin: .2rem 0; padding: 0 }
.summary dt { font-weight: 600; margin-top: .6rem }
.summary dd { margin: 0 }
.left-out { color: var(--faint); font-size: .9rem }
.wide { margin: 1.2rem 0 }
.tools { display: flex; flex-wrap: wrap; gap: .5rem; align-items: center; font-size: .8rem; color: var(--faint) }
.tools input, .tools button, dialog button, td button, th button { font: inherit; color: var(--text);
  background: var(--shade); border: 1px solid var(--line); border-radius: 4px; padding: .1rem .5rem }
.tools input { width: 9rem }
td button, tbody th button { color: var(--link); cursor: pointer; padding: 0 .3rem }
.more { visibility: hidden; font-weight: 600; color: #d55e00 }
.overflows .more { visibility: visible }
.scroll { overflow-x: auto; width: fit-content; max-width: 100% }
.overflows .scroll { background: linear-gradient(to right, var(--back), transparent 2rem) local,
  linear-gradient(to left, var(--back), transparent 2rem) 100% 0 local,
  linear-gradient(to right, var(--shadow), transparent .9rem),
  linear-gradient(to left, var(--shadow), transparent .9rem) 100% 0; background-repeat: no-repeat }
table { border-collapse: separate; border-spacing: 0; font-size: .875rem; line-height: 1.4;
  font-variant-numeric: tabular-nums }
caption, .caption, figcaption, summary { text-align: left; color: var(--faint); font-size: .875rem; max-width: 46rem }
.caption { margin: 0 0 .3rem }
.caption a, figcaption a { white-space: nowrap }
th, td { padding: .25rem 1rem .25rem 0; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top;
  overflow-wrap: normal }
th { font-weight: 600 }
tbody th { font-weight: 400; white-space: nowrap }
tr > :first-child { position: sticky; left: 0; background: var(--back); z-index: 1; max-width: min(20rem, 45vw);
  overflow-wrap: anywhere; white-space: normal; min-width: min(8rem, 38vw) }
thead th { border-bottom: 2px solid var(--line); vertical-align: bottom; max-width: 11rem;
  overflow-wrap: break-word }
thead th[data-sort] { cursor: pointer }
thead th[aria-sort=ascending]::after { content: " ▲" }
thead th[aria-sort=descending]::after { content: " ▼" }
.number { text-align: right }
td.number, td.short { white-space: nowrap }
.long { min-width: 14rem; max-width: 26rem; overflow-wrap: anywhere }
code, pre { font: .85em/1.45 ui-monospace, monospace }
pre { white-space: pre-wrap; background: var(--shade); padding: .6rem .8rem; margin: .3rem 0 }
figure { margin: 1.2rem 0; max-width: 36rem }
figure svg { display: block; width: 100%; height: auto; overflow: visible; color: var(--text) }
figure svg * { stroke-linejoin: round; stroke-linecap: butt }
[data-experiment] { cursor: pointer }
svg g.told:hover > :not(title) { stroke-width: 3; opacity: 1 }
figcaption { padding: .4rem 0 0 }
figure:has(.wide) { max-width: none }
figure .wide svg { width: auto; max-width: none }
.keys { font-size: .8rem; max-width: none }
.key { display: inline-block; margin-right: .9rem; white-space: nowrap }
.key i { display: inline-block; width: .8em; height: .8em; margin-right: .3em; border: 1px solid var(--line) }
.play { display: none }
.play input { width: min(14rem, 40vw); vertical-align: middle }
details { margin: 1.2rem 0 }
summary { cursor: pointer }
dialog { max-width: min(40rem, 94vw); color: var(--text); background: var(--back); border: 1px solid var(--line);
  border-radius: 6px; padding: 1rem }
dialog svg { width: 100%; height: auto; margin: .6rem 0 }
dialog polyline { fill: none; stroke: #d55e00; stroke-width: 1.5 }
dialog text { fill: var(--faint); font-size: 11px }
@media print {
  @page { size: A4 landscape; margin: 12mm }
  :root { --text: #000; --faint: #444; --line: #bbb; --shade: #f4f4f4; --link: #000; --back: #fff; color-scheme: light }
  body { max-width: none; padding: 0; font-size: 10pt }
  nav, .tools, dialog { display: none }
  .play { display: none !important }
  details:not([open]) > summary { list-style: none }
  details:not([open]) > summary::after { content: " (only on the page)" }
  #queries > :not(h2) { display: none }
  #queries::after { content: "Only on the page: the queries behind its tables and figures." }
  h2, h3, caption, .caption { break-after: avoid }
  figure, tr { break-inside: avoid }
  section > p { break-after: avoid; break-inside: avoid }
  figure { max-width: 150mm }
  figure svg { max-height: 160mm }
  figure:has(.wide) { max-width: none; break-inside: auto }
  figure .wide svg { max-width: 100%; max-height: none; height: auto }
  .scroll { overflow: visible; background: none }
  table { font-size: 7.5pt; width: 100% }
  th, td, thead th, td.number, td.short, .long, tr > :first-child { white-space: normal; overflow-wrap: anywhere;
    min-width: 0; max-width: none; position: static; padding-right: .5rem }
  table:not(:has(th:nth-child(9))) thead th { overflow-wrap: break-word }
}
"""
