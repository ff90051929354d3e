"""One page of HTML that shows a snapshot: live and held memory over time, and the segments' map.

The page needs no network. Its data are the figures that it draws: the timeline has at most so many
points, each the most of its time, and the map has every block.
"""

from __future__ import annotations

import html
import json
from typing import Any, Dict, List, Tuple

#: Points of the timeline.
POINTS = 2000
#: Frames of a tooltip.
FRAMES = 12

_STATES = {"active_allocated": 0, "active_pending_free": 1}


def page(snapshot: Dict[str, Any]) -> str:
    """The page of a snapshot as torch.cuda.memory._snapshot() or a memopt allocator gives it."""
    extra = snapshot.get("memopt") or {}
    stacks: Dict[str, int] = {"": 0}
    found = {
        "devices": [
            {
                "live": _thinned(_live(trace)),
                "held": _thinned(_held(extra.get("held") or ())) if number == last else [],
                "failed": [e["time_us"] / 1e6 for e in trace if e["action"] == "oom"],
            }
            for number, trace in enumerate(snapshot["device_traces"])
            for last in [len(snapshot["device_traces"]) - 1]
        ],
        "segments": [_segment(segment, stacks) for segment in snapshot["segments"]],
        "tags": list(extra.get("tags") or ()),
        "stacks": list(stacks),
        "failure": extra.get("out_of_memory"),
    }
    data = json.dumps(found, separators=(",", ":"), allow_nan=False).replace("</", "<\\/")
    settings = snapshot.get("allocator_settings") or {}
    title = html.escape(str(settings.get("PYTORCH_CUDA_ALLOC_CONF") or "default configuration"))
    return _PAGE.replace("@TITLE@", title).replace("@DATA@", data)


def _live(trace: List[Dict[str, Any]]) -> List[Tuple[float, int]]:
    """Times and bytes alive after each event; frees of what came before the trace count from 0."""
    alive: Dict[int, int] = {}
    total, points = 0, []
    for entry in trace:
        if entry["action"] == "alloc":
            total += entry["size"] - alive.pop(entry["addr"], 0)
            alive[entry["addr"]] = entry["size"]
        elif entry["action"] == "free_completed":
            total -= alive.pop(entry["addr"], 0)
        else:
            continue
        points.append((entry["time_us"] / 1e6, total))
    return points


def _held(changes: Any) -> List[Tuple[float, int]]:
    total, points = 0, []
    for at, change in changes:
        total = max(total + change, 0)
        points.append((at, total))
    return points


def _thinned(points: List[Tuple[float, int]]) -> List[Tuple[float, int]]:
    """At most POINTS of them: of equal numbers of neighbours the largest."""
    step = max(1, -(-len(points) // POINTS))
    parts = (points[i : i + step] for i in range(0, len(points), step))
    return [max(part, key=lambda point: point[1]) for part in parts]


def _segment(segment: Dict[str, Any], stacks: Dict[str, int]) -> Dict[str, Any]:
    """What the map needs: blocks as [bytes, requested, state, tag, stack, age]."""
    return {
        "device": segment["device"],
        "address": "%#x" % segment["address"],
        "bytes": segment["total_size"],
        "stream": segment["stream"],
        "kind": segment["segment_type"] + (", expandable" if segment.get("is_expandable") else ""),
        "blocks": [
            [
                block["size"],
                block.get("requested_size", block["size"]),
                _STATES.get(block["state"], 2),
                block.get("tag", -1),
                stacks.setdefault(_stack(block.get("frames") or ()), len(stacks)),
                block.get("age", -1),
            ]
            for block in segment["blocks"]
        ],
    }


def _stack(frames: Any) -> str:
    return "\n".join("%s:%s %s" % (frame["filename"], frame["line"], frame["name"]) for frame in list(frames)[:FRAMES])


_PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>memopt: @TITLE@</title>
<style>
body{font:14px sans-serif;margin:1.5em;color:#222;background:#fff}
h1{font-size:1.2em}h2{font-size:1em;margin:1.2em 0 .3em}
svg{background:#fafafa;border:1px solid #ddd;display:block}
.row{display:flex;height:18px;margin:2px 0;background:#eee}
.row span{display:inline-block;height:100%;box-sizing:border-box;border-right:1px solid #fff}
#tip{position:fixed;display:none;background:#222;color:#fff;padding:.5em .7em;white-space:pre;
font:12px monospace;border-radius:4px;max-width:90vw;pointer-events:none;z-index:9}
pre{background:#fff4f4;border:1px solid #e0b0b0;padding:.7em;white-space:pre-wrap}
.key span{display:inline-block;width:12px;height:12px;margin:0 .4em 0 1em;vertical-align:-1px}
small{color:#666}
</style></head><body>
<h1>Memory of an allocator <small>@TITLE@</small></h1>
<div id="failure"></div><div id="charts"></div>
<h2>Segments <small>each line is one, as wide as it is large; point at a block</small></h2>
<div class="key" id="key"></div><div id="map"></div><div id="tip"></div>
<script id="data" type="application/json">@DATA@</script>
<script>
"use strict";
const data=JSON.parse(document.getElementById("data").textContent);
const tip=document.getElementById("tip");
const colours=["#4c78a8","#59a14f","#e15759","#b07aa1","#f28e2b","#9c755f","#76b7b2","#edc948"];
function size(b){let u=0;while(b>=1024&&u<4){b/=1024;u++}
return (u?b.toFixed(2):b)+" "+["B","KiB","MiB","GiB","TiB"][u]}
function tag(t){return t<0?"":data.tags[t]||"tag "+t}
function show(e,text){tip.textContent=text;tip.style.display="block";
const x=Math.min(e.clientX+14,innerWidth-tip.offsetWidth-8);
const y=Math.min(e.clientY+14,innerHeight-tip.offsetHeight-8);
tip.style.left=Math.max(x,4)+"px";tip.style.top=Math.max(y,4)+"px"}
function hide(){tip.style.display="none"}
function add(parent,kind,set,text){const made=document.createElementNS(
kind==="svg"||parent.namespaceURI.endsWith("svg")?"http://www.w3.org/2000/svg":
"http://www.w3.org/1999/xhtml",kind);
for(const name in set)made.setAttribute(name,set[name]);
if(text!==undefined)made.textContent=text;parent.appendChild(made);return made}
function at(points,time){let low=0,high=points.length;
while(low<high){const middle=low+high>>1;if(points[middle][0]<=time)low=middle+1;else high=middle}
return low?points[low-1][1]:0}
function chart(device,number){
const all=device.live.concat(device.held);if(!all.length)return;
const w=960,h=260,left=70,first=Math.min(...all.map(p=>p[0])),last=Math.max(...all.map(p=>p[0]));
const most=Math.max(1,...all.map(p=>p[1])),span=Math.max(last-first,1e-6);
const x=t=>left+(t-first)/span*(w-left-10),y=b=>h-24-b/most*(h-40);
const charts=document.getElementById("charts");
add(charts,"h2",{},"Device "+number+": live (blue) and held (orange) memory over time");
const svg=add(charts,"svg",{width:w,height:h,viewBox:"0 0 "+w+" "+h});
for(let i=0;i<=4;i++){const v=most*i/4;
add(svg,"line",{x1:left,x2:w-10,y1:y(v),y2:y(v),stroke:"#ddd"});
add(svg,"text",{x:left-6,y:y(v)+4,"text-anchor":"end","font-size":11},size(v))}
for(const [points,colour] of [[device.held,"#f28e2b"],[device.live,"#4c78a8"]]){
if(!points.length)continue;let d="M"+x(points[0][0])+" "+y(points[0][1]);
for(const p of points)d+="H"+x(p[0]).toFixed(1)+"V"+y(p[1]).toFixed(1);
d+="H"+x(last);add(svg,"path",{d:d,fill:"none",stroke:colour,"stroke-width":1.5})}
for(const t of device.failed)add(svg,"line",
{x1:x(t),x2:x(t),y1:8,y2:h-24,stroke:"#d62728","stroke-dasharray":"4 3"});
add(svg,"text",{x:left,y:h-8,"font-size":11},new Date(first*1e3).toISOString());
add(svg,"text",{x:w-10,y:h-8,"text-anchor":"end","font-size":11},"+"+span.toFixed(3)+" s");
svg.addEventListener("mousemove",e=>{
const t=first+(e.offsetX-left)/(w-left-10)*span;
if(t<first||t>last)return hide();
show(e,"+"+(t-first).toFixed(4)+" s\\nlive "+size(at(device.live,t))+
(device.held.length?"\\nheld "+size(at(device.held,t)):""))});
svg.addEventListener("mouseleave",hide)}
data.devices.forEach(chart);
if(data.failure){const f=data.failure;
add(document.getElementById("failure"),"h2",{},"Out of memory: "+f.cause);
add(document.getElementById("failure"),"pre",{},f.meaning+"\\ntry: "+f.advice+"\\n\\n"+f.message)}
const states=["in use","freed, waits for a stream","free"];
const used=new Set();
const widest=Math.max(1,...data.segments.map(s=>s.bytes));
const map=document.getElementById("map");
for(const s of data.segments){
const row=add(map,"div",{class:"row",style:"width:"+Math.max(s.bytes/widest*100,.3)+"%"});
s.blocks.forEach((b,i)=>{
const colour=b[2]===2?"transparent":b[2]===1?"#bbb":colours[Math.max(b[3],0)%colours.length];
if(b[2]===0)used.add(Math.max(b[3],0));
const cell=add(row,"span",{style:"flex:"+b[0]+" 1 0;min-width:0;background:"+colour});
cell.addEventListener("mousemove",e=>show(e,states[b[2]]+" "+size(b[0])+
(b[2]===0?" ("+size(b[1])+" asked) "+tag(b[3]):"")+
(b[5]>=0&&b[2]===0?", "+b[5]+" allocations old":"")+
"\\nsegment "+s.address+" "+size(s.bytes)+" "+s.kind+", stream "+s.stream+
(data.stacks[b[4]]?"\\n\\n"+data.stacks[b[4]]:"")));
cell.addEventListener("mouseleave",hide)})}
const key=document.getElementById("key");
for(const t of [...used].sort((a,b)=>a-b)){
add(key,"span",{style:"background:"+colours[t%colours.length]});
key.append(tag(t)||"in use")}
add(key,"span",{style:"background:#bbb"});key.append("freed, waits for a stream");
add(key,"span",{style:"background:#eee;border:1px solid #ccc"});key.append("free");
</script></body></html>
"""
