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
