"use strict";
// Reads again what changes while a job runs; what is open stays open.
const live = document.querySelector("#live");
async function look() {
  const opened = [...live.querySelectorAll("details")].map(each => each.open);
  const answer = await fetch(location.pathname + "/live");
  if (!answer.ok) return setTimeout(look, 3000);
  live.innerHTML = await answer.text();
  live.querySelectorAll("details").forEach((each, index) => { each.open = Boolean(opened[index]); });
  if (!live.querySelector("[data-over]")) setTimeout(look, 1000);
}
if (!live.querySelector("[data-over]")) setTimeout(look, 1000);
