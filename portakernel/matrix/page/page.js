"use strict";
// The filter is the fragment of the address, `#vendor=amd&dtype=bfloat16`; what the controls show follows from it.
const form = document.getElementById("filter");
const controls = [...form.querySelectorAll("select")];
const sections = [...document.querySelectorAll("#matrix tbody")].map((body) => ({
  body,
  op: body.dataset.op,
  rows: [...body.querySelectorAll("tr[data-kernel]")].map((line) => ({ line, ...read(line.dataset) })),
}));
const total = sections.reduce((sum, section) => sum + section.rows.length, 0);

function words(text) {
  return new Set(text.split(" "));
}

function read(data) {
  const proofs = data.proof.split(";").filter(Boolean).map((text) => {
    const [kind, dtypes, formats] = text.split(":");
    return { kind, dtypes: words(dtypes), formats: words(formats) };
  });
  const { kernel, plugin, vendor } = data;
  return { kernel, plugin, vendor, archs: words(data.arch), dtypes: words(data.dtype), formats: words(data.format), proofs };
}

function fits(row, wanted) {
  // what was proven in one dtype or format says nothing of another
  const proves = (proof) =>
    proof.kind === wanted.proof &&
    (!wanted.dtype || proof.dtypes.has(wanted.dtype)) &&
    (!wanted.format || proof.formats.has(wanted.format));
  return (
    (!wanted.vendor || row.vendor === wanted.vendor) &&
    (!wanted.plugin || row.plugin === wanted.plugin) &&
    (!wanted.arch || row.archs.has(wanted.arch)) &&
    (!wanted.dtype || row.dtypes.has(wanted.dtype)) &&
    (!wanted.format || row.formats.has(wanted.format)) &&
    (!wanted.proof || row.proofs.some(proves))
  );
}

function show() {
  const wanted = Object.fromEntries(controls.map((control) => [control.name, control.value]));
  const kernels = new Set();
  let [shown, ops] = [0, 0];
  for (const { body, op, rows } of sections) {
    let here = 0;
    for (const row of rows) {
      const fit = (!wanted.op || op === wanted.op) && fits(row, wanted);
      row.line.hidden = !fit;
      here += fit;
      if (fit) kernels.add(row.kernel);
    }
    body.hidden = here === 0;
    shown += here;
    ops += here > 0;
  }
  for (const group of form.elements.arch.querySelectorAll("optgroup")) {
    group.hidden = group.disabled = Boolean(wanted.vendor) && group.dataset.vendor !== wanted.vendor;
  }
  document.getElementById("none").hidden = shown > 0;
  document.getElementById("count").value = `${shown} of ${total} rows; kernels: ${kernels.size}; ops: ${ops}`;
  document.dispatchEvent(new Event("filtered"));
}

function choose() {
  // an architecture of another vendor would leave nothing
  const { vendor, arch } = form.elements;
  const group = arch.selectedOptions[0].closest("optgroup");
  if (vendor.value && group && group.dataset.vendor !== vendor.value) arch.value = "";
  const chosen = controls.filter((control) => control.value).map((control) => [control.name, control.value]);
  history.pushState(null, "", `#${new URLSearchParams(chosen)}`);
  document.getElementById("unknown").hidden = true;
  show();
}

function restore() {
  const asked = new URLSearchParams(location.hash.slice(1));
  for (const control of controls) {
    control.value = asked.get(control.name) ?? "";
    if (control.selectedIndex < 0) control.value = "";
    if (control.value) asked.delete(control.name);
  }
  const left = [...asked].map(([name, value]) => `${name}=${value}`);
  const told = document.getElementById("unknown");
  told.hidden = left.length === 0;
  told.textContent = left.length ? `The address asks for ${left.join(", ")}, which this matrix does not have.` : "";
  show();
}

form.addEventListener("change", choose);
form.addEventListener("submit", (event) => event.preventDefault());
form.addEventListener("reset", () => setTimeout(choose));
addEventListener("popstate", restore);
restore();
