"use strict";
// The page. What is shown of the cluster goes into the document as text alone.
(() => {
  const $ = id => document.getElementById(id);
  let page; // what is said of the cluster

  // h makes an element: attributes, then children, which are nodes or texts.
  function h(name, attributes, ...children) {
    const e = document.createElement(name);
    for (const [k, v] of Object.entries(attributes || {})) {
      if (typeof v === "function") e.addEventListener(k, v);
      else if (v !== undefined && v !== false) e.setAttribute(k, v === true ? "" : v);
    }
    e.append(...parts(children));
    return e;
  }
  // parts are nodes and texts of lists in lists, without what there is not.
  const parts = list => list.flat(Infinity).filter(c => c !== undefined && c !== null && c !== false && c !== "").map(c => typeof c === "string" ? named(c) : c);
  // named replaces stand-ins for addresses by what they stand for.
  const standIn = /(?:\b\d+(?:\.\d+){3}|\[[0-9a-f:]+\]|\bnode):([3-6]\d{4})(?=\/(?:tcp|udp|sctp))|(ClusterIP |LoadBalancer )?(\b24[4-7](?:\.\d+){3}|\[?\b100::[0-9a-f:]+\]?)|(NodePort (?:node:)?|health check on port |such as |: )([3-6]\d{4})\b/g;
  const named = text => page?.standIns ? text.replace(standIn, (found, own, kind = "", addr = "", port = "", number) => {
    const name = page.standIns[own || number || addr.replace(/[[\]]/g, "")];
    if (own) return name ? "NodePort " + name : found.replace(/^.*(?=:\d+$)/, named);
    if (name && (port === "such as " || port === ": ")) return port + (port === ": " ? "port " + name : "the one");
    return !name ? found : port.replace("node:", "") + (name.startsWith(kind) ? "" : kind) + name;
  }) : text;
  const fill = (e, ...children) => e.replaceChildren(...parts(children));
  const numbers = new Intl.NumberFormat("en"), figure = n => numbers.format(n);
  const count = (n, one, many) => figure(n) + " " + (n === 1 ? one : many || one + "s");
  const tag = (kind, text) => h("span", {class: "tag " + kind}, text || kind);
  const fates = {"served": ["served", "✓ served"], "rejected": ["rejected", "✕ rejected"], "dropped": ["dropped", "⌀ dropped"], "not proxied": ["faint", "– not proxied"]};
  // decoded is a part of the page's address, which may be cut off.
  const decoded = text => { try { return decodeURIComponent(text); } catch { return text; } };
  const hostPort = (addr, port) => (addr.includes(":") ? "[" + addr + "]" : addr) + ":" + port;
  const matchText = m => (m.addr === undefined ? "node:" + m.port : hostPort(m.addr, m.port)) + "/" + m.protocol;
  const nameText = n => n.namespace + "/" + n.name;
  const originText = o => o && o.object ? o.object + (o.field ? ": " + o.field : "") + (o.reason ? " (" + o.reason + ")" : "") : "";
  const serviceLink = name => h("a", {href: "#services/" + encodeURIComponent(name)}, name);

  // table makes a table that scrolls by itself where it is too wide.
  function table(caption, heads, rows) {
    return h("div", {class: "wide", tabindex: "0", role: "region", "aria-label": caption},
      h("table", {}, h("caption", {class: "hidden-text"}, caption),
        h("thead", {}, h("tr", {}, heads.map(t => h("th", {scope: "col"}, t)))), h("tbody", {}, rows)));
  }

  async function decode(element) {
    const text = element.textContent.trim();
    const bytes = Uint8Array.fromBase64 ? Uint8Array.fromBase64(text) : Uint8Array.from(atob(text), c => c.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
    return JSON.parse(await new Response(stream).text());
  }

  let node;          // what is known of the chosen node
  let all = [];      // its Services, by name
  const changes = new Map(), findings = new Map(); // by Service; changes separately by effect, the most dangerous first

  // ---- the data of a node

  async function choose(i) {
    node = await decode($("node-" + i));
    const byName = new Map();
    const of = name => {
      let s = byName.get(name);
      if (!s) byName.set(name, s = {name, families: {}, reach: []});
      return s;
    };
    for (const p of node.programs) for (const s of p.services || []) of(nameText(s.name)).families[p.family] = s;
    for (const w of page.without || []) of(w.name).why = w.why;
    for (const name of changes.keys()) if (name) of(name); // what changes of no Service's has none
    for (const row of node.reach) if (byName.has(row.service)) of(row.service).reach.push(row);
    all = [...byName.values()].sort((a, b) => a.name < b.name ? -1 : a.name > b.name ? 1 : 0);
    for (const s of all) {
      const sides = Object.values(s.families), fronts = sides.flatMap(x => x.frontends || []), at = fronts.map(f => matchText(f.match));
      s.unserved = fronts.some(leftOver);
      s.at = at.length > 0 ? at[0] + (at.length > 1 ? " and " + (at.length - 1) + " more" : "") : s.why || "has no rules on this node";
      const backends = sides.flatMap(x => x.pools || []).flatMap(p => p.backends.map(b => b.addrPort));
      s.words = [s.name, ...at, ...fronts.flatMap(f => [f.kind, f.port.port || ""]), ...backends].join(" ").toLowerCase();
    }
  }

  function indexPage() {
    for (const s of (page.diff ? page.diff.doc.services : [])) changes.set(s.name, [...(changes.get(s.name) || []), s]);
    const known = new Set((page.new ? page.new.findings : []).map(findingKey));
    for (const f of page.findings.findings) {
      f.isNew = known.has(findingKey(f));
      const m = /^(?:Service|EndpointSlice|Endpoints) (\S+\/\S+)$/.exec(f.object || "");
      if (m) findings.set(m[1], [...(findings.get(m[1]) || []), f]);
    }
  }
  const findingKey = f => [f.code, f.severity, f.object, f.field, f.message].join("|");

  // ---- overview

  function overview() {
    const o = page.overview, counts = {error: 0, warning: 0, info: 0};
    for (const f of page.findings.findings) counts[f.severity] += 1 + (f.more || 0);
    const kinds = ["ClusterIP", "external IP", "load balancer", "node port"];
    const tile = (n, what, href) => h("li", {}, h("b", {}, figure(n)), href ? h("a", {href}, what) : h("span", {}, what));
    const changed = page.diff ? page.diff.doc.counts : null;
    fill($("overview"), 
      h("h2", {id: "overview-h"}, "Overview"),
      h("p", {}, "Mode ", h("b", {}, o.mode), ", " + ((o.families || []).join(" and ") || "no family") + ", node ", h("b", {}, o.node),
        o.nodes > 1 ? ", of " + count(o.nodes, "node") : "", "."),
      h("p", {id: "inputs"}, page.cluster && ["Cluster ", h("b", {}, page.cluster), ". "], "Inputs: " + page.inputs.join(", "), page.before && ", compared with " + page.before.join(", "),
        page.date && ". Date: " + page.date, "."),
      h("ul", {class: "tiles"},
        tile(o.services, o.services === 1 ? "Service with rules" : "Services with rules", "#services"),
        o.frontends.map((n, i) => n > 0 && tile(n, "frontends: " + kinds[i])),
        tile(o.backends, "backends"),
        tile(o.unserved.length, "Services that leave some clients unserved", o.unserved.length > 0 ? "#services" : ""),
        o.without > 0 && tile(o.without, "Services without rules")),
      h("ul", {class: "tiles"},
        ["error", "warning", "info"].map(s => tile(counts[s], s === "info" ? "findings: info" : "findings: " + s + "s", "#findings")),
        changed && ["added", "changed", "removed"].map(a => tile(changed[a], "Services " + a, "#diff")),
        changed && changed.effects.opens > 0 && h("li", {class: "opens"}, h("b", {}, figure(changed.effects.opens)), h("a", {href: "#diff"}, "changes that open access"))),
      page.diff && h("p", {}, page.diff.summary),
      o.unserved.length > 0 && [h("h3", {}, "Services that leave some clients unserved"), listed(o.unserved)],
      h("h3", {}, "Settings for all Services"),
      table("Settings", ["", "value", "decided by"], o.settings.map(s =>
        h("tr", {}, h("th", {scope: "row"}, s.what), h("td", {class: "mono"}, s.value), h("td", {class: "faint"}, s.origin || "")))),
      h("footer", {}, "Written by proxyc " + page.version + ". Keys: / searches, arrow keys move in the list of Services. Results are for the first packet of each connection. Existing connections, network policies and the pod network are not considered."));
  }

  // listed names Services, the first of very many.
  function listed(names) {
    const most = 30;
    return h("p", {}, names.slice(0, most).flatMap((n, i) => [i > 0 ? ", " : "", serviceLink(n)]),
      names.length > most ? " and " + count(names.length - most, "other") : "");
  }

  // ---- Services: a list of which only what is seen is in the document

  const rowHeight = 44;
  let shown = [], chosen = -1, list, room, detail, show;

  const shows = {
    "all": () => true,
    "unserved clients": s => s.unserved,
    "findings": s => findings.has(s.name),
    "changed": s => changes.has(s.name),
    "without rules": s => Object.keys(s.families).length === 0,
  };

  function services() {
    show = h("select", {id: "show", change: () => filter()}, Object.keys(shows).filter(k => k !== "changed" || page.diff).map(k => h("option", {value: k}, k)));
    room = h("div", {class: "room", role: "presentation"});
    list = h("div", {id: "list", role: "listbox", tabindex: "0", "aria-label": "Services", scroll: rows, keydown: listKey}, room);
    detail = h("article", {id: "service", "aria-live": "off"});
    fill($("services"), h("h2", {id: "services-h"}, "Services"),
      h("div", {}, h("div", {class: "bar"}, h("label", {for: "show"}, "Show"), show, h("span", {id: "found", role: "status"})), list), detail);
    filter();
  }

  function filter() {
    const words = $("words").value.toLowerCase().split(/\s+/).filter(Boolean), of = shows[show.value];
    const name = shown[chosen] && shown[chosen].name;
    shown = all.filter(s => of(s) && words.every(w => s.words.includes(w)));
    const inName = s => words.every(w => s.name.includes(w)); // these are first
    shown.sort((a, b) => inName(b) - inName(a));
    chosen = shown.findIndex(s => s.name === name);
    $("found").textContent = shown.length === all.length ? count(all.length, "Service") : figure(shown.length) + " of " + count(all.length, "Service");
    room.style.height = shown.length * rowHeight + "px";
    list.scrollTop = Math.max(0, chosen) * rowHeight;
    rows();
  }

  function rows() {
    const from = Math.max(0, Math.floor(list.scrollTop / rowHeight) - 4), to = Math.min(shown.length, from + Math.ceil((list.clientHeight || 600) / rowHeight) + 9);
    const out = [];
    for (let i = from; i < to; i++) {
      const s = shown[i], change = changes.get(s.name), found = findings.get(s.name);
      const row = h("div", {class: "row", id: "row-" + i, role: "option", "aria-selected": String(i === chosen), "aria-setsize": shown.length, "aria-posinset": i + 1,
        click: () => pick(i)},
        h("div", {}, change && h("span", {class: "dot tag " + change[0].effect}, change[0].effect), found && h("span", {class: "dot tag " + worst(found)}, worst(found)), s.name),
        h("div", {class: "mono"}, s.at));
      row.style.top = i * rowHeight + "px";
      out.push(row);
    }
    fill(room, out);
    list.setAttribute("aria-activedescendant", chosen >= from && chosen < to ? "row-" + chosen : "");
  }
  const worst = found => ["error", "warning", "info"].find(s => found.some(f => f.severity === s));

  function listKey(e) {
    const full = Math.max(1, Math.floor(list.clientHeight / rowHeight) - 1);
    const step = {ArrowDown: 1, ArrowUp: -1, PageDown: full, PageUp: -full, Home: -Infinity, End: Infinity}[e.key];
    if (step === undefined || shown.length === 0 || e.ctrlKey || e.metaKey || e.altKey) return;
    e.preventDefault();
    pick(Math.min(shown.length - 1, Math.max(0, (chosen < 0 ? -1 : chosen) + step)));
  }

  function pick(i) {
    chosen = i;
    list.scrollTop = Math.max((i + 1) * rowHeight - list.clientHeight, Math.min(list.scrollTop, i * rowHeight));
    rows();
    const hash = "#services/" + encodeURIComponent(shown[i].name);
    if (location.hash !== hash) history.replaceState(null, "", hash);
    fill(detail, service(shown[i], "h3"));
  }

  function open(name) {
    let i = shown.findIndex(s => s.name === name);
    if (i < 0) {
      $("words").value = "";
      show.value = "all";
      filter();
      i = shown.findIndex(s => s.name === name);
    }
    if (i >= 0 && (i !== chosen || !detail.hasChildNodes())) pick(i);
  }

  // ---- one Service

  function service(s, heading) {
    const change = changes.get(s.name), found = findings.get(s.name) || [];
    const out = [h(heading, {}, s.name, " ", change && tag(change[0].action))];
    if (s.why) out.push(h("p", {}, "Has no rules: " + s.why));
    else if (Object.keys(s.families).length === 0) out.push(h("p", {}, "Has no rules on node " + node.name + "."));
    for (const [family, svc] of Object.entries(s.families)) {
      out.push(h("figure", {}, h("figcaption", {}, "Path of " + family + " packets on node " + node.name), drawing(svc, s.name, family, change)));
    }
    if (s.reach.length > 0) out.push(h("h4", {}, "Who can reach it"), matrix(s.reach, false));
    for (const [family, svc] of Object.entries(s.families)) out.push(frontends(svc, family), backends(svc, family));
    if (found.length > 0) out.push(h("h4", {}, "Findings"), h("ul", {class: "plain"}, found.map(f => h("li", {}, finding(f)))));
    if (change) out.push(h("h4", {}, "Differences"), ...change.map(c => h("div", {class: "entry " + c.effect}, h("p", {}, tag(c.effect)), flows(c))));
    return out;
  }

  function frontends(svc, family) {
    const rows = [];
    for (const f of svc.frontends || []) {
      const ways = (f.routes || []).map(r => h("div", {}, scope(r.from, f) + " → " + poolText(svc.pools[r.pool]) + ", " + (r.snat ? "masqueraded" : "address kept"),
        h("span", {class: "origin"}, originText(r.origin))));
      if (leftOver(f)) ways.push(h("div", {class: verdict(f)}, "else " + verdict(f), h("span", {class: "origin"}, originText(f.fallbackOrigin))));
      rows.push(h("tr", {}, h("td", {class: "mono"}, f.kind + " " + matchText(f.match), h("span", {class: "origin"}, originText(f.origin))),
        h("td", {}, f.policy), h("td", {}, (f.sourceRanges || []).map(r => h("div", {class: "mono"}, r.prefix)), !f.sourceRanges && "everybody"), h("td", {}, ways)));
    }
    return h("details", {}, h("summary", {}, family + ": " + count(rows.length, "frontend") + ", with the deciding fields"),
      table("Frontends, " + family, ["frontend", "traffic policy", "admits", "clients → pool"], rows));
  }

  function backends(svc, family) {
    const rows = (svc.pools || []).flatMap(p => p.backends.map(b => h("tr", {}, h("td", {}, poolText(p)), h("td", {class: "mono"}, b.addrPort),
      h("td", {}, b.local ? "on this node" : ""), h("td", {class: "faint"}, originText(b.origin)))));
    if (rows.length === 0) return h("p", {}, family + ": no backend.");
    return h("details", {}, h("summary", {}, family + ": " + count(rows.length, "backend") + " in " + count(svc.pools.length, "pool")),
      svc.pools.map(p => h("p", {class: "faint"}, poolText(p) + ": " + originText(p.origin))),
      table("Backends, " + family, ["pool", "backend", "", "decided by"], rows));
  }

  const verdict = f => f.fallback === "drop" ? "dropped" : "rejected";
  const leftOver = f => !(f.routes || []).length || f.routes[f.routes.length - 1].from !== "any";
  const poolText = p => (p.port.port || p.port.protocol) + " " + p.policy;
  function scope(from, f) {
    if (from === "any") return f.routes.length > 1 ? "other clients" : "all clients";
    return from === "pods" ? "pods" : "this node";
  }

  // ---- the drawing: client → frontend → policy → pool → backends

  const NS = "http://www.w3.org/2000/svg";
  function s(name, attributes, ...children) {
    const e = document.createElementNS(NS, name);
    for (const [k, v] of Object.entries(attributes)) e.setAttribute(k, v);
    e.append(...children);
    return e;
  }

  const line = 17, padding = 8, glyph = 7.3, longest = 36, most = 10;
  // box is a box of lines: [text, class].
  function box(lines) {
    lines = lines.map(([text, ...rest]) => [named(text), ...rest]);
    const width = Math.min(longest, Math.max(...lines.map(l => l[0].length))) * glyph + 2 * padding;
    return {lines, width, height: lines.length * line + 2 * padding - 3};
  }
  const tallest = row => Math.max(...row.map(b => b.height));
  const few = (lines, one) => lines.length <= most ? lines : [...lines.slice(0, most - 1), ["and " + count(lines.length - most + 1, one) + " more", "faint"]];

  function drawing(svc, name, family, change) {
    const heads = ["client", "frontend", "traffic policy", "pool", "backends"], told = [], edges = [];
    const clients = new Map(), fronts = [], used = []; // boxes of clients; pairs of boxes: a frontend and its policy; a pool and its backends
    const client = who => {
      if (!clients.has(who)) clients.set(who, box([[who, "strong"]]));
      return clients.get(who);
    };
    const added = new Set(), removed = new Set();
    for (const f of (change || []).flatMap(c => c.flows)) {
      if (f.family !== family || !f.nodes.includes(node.name)) continue;
      for (const b of f.added || []) added.add(b.address);
      for (const b of f.removed || []) removed.add(b.address);
    }
    const pools = (svc.pools || []).map(p => {
      const head = box([[poolText(p), "strong"], [count(p.backends.length, "backend"), ""],
        ...(p.affinity ? [["affinity for " +  p.affinity.timeout, ""]] : [])]);
      const has = new Set(p.backends.map(b => b.addrPort));
      const lines = p.backends.map(b => added.has(b.addrPort) ? ["+\u00a0" + b.addrPort + (b.local ? " here" : ""), "added"] : [b.addrPort + (b.local ? " here" : ""), ""]);
      for (const gone of removed) if (!has.has(gone) && samePort(gone, p)) lines.push(["−\u00a0" + gone, "removed"]);
      return [head, box(few(lines, "backend"))];
    });
    const groups = new Map();
    for (const f of svc.frontends || []) {
      const like = JSON.stringify([f.policy, f.port, (f.routes || []).map(r => [r.from, r.pool, r.snat]), leftOver(f) && f.fallback, (f.sourceRanges || []).map(r => r.prefix)]);
      groups.set(like, [...(groups.get(like) || []), f]);
    }
    for (const group of groups.values()) {
      const f = group[0], routes = f.routes || [];
      const front = box([[f.port.port ? "port " + f.port.port : "port without a name", "strong"], ...few(group.map(g => [g.kind + " " + matchText(g.match), ""]), "frontend")]);
      const lines = [[f.policy, "strong"]];
      if (f.sourceRanges) lines.push(...few(f.sourceRanges.map(r => ["only " + r.prefix, ""]), "range"), ["others dropped", "dropped"]);
      const starts = routes.map(r => {
        lines.push([scope(r.from, f) + ": " + (r.snat ? "masqueraded" : "address kept"), "served"]);
        return lines.length - 1;
      });
      if (leftOver(f)) lines.push([(routes.length > 0 ? "other clients: " : "all clients: ") + verdict(f), verdict(f)]);
      const policy = box(lines);
      fronts.push([front, policy]);
      const who = routes.map(r => scope(r.from, f));
      if (leftOver(f)) who.push(routes.length > 0 ? "other clients" : "all clients");
      for (const w of who) edges.push([client(w), front]);
      edges.push([front, policy]);
      routes.forEach((r, i) => {
        if (!used.includes(pools[r.pool])) used.push(pools[r.pool]);
        edges.push([policy, pools[r.pool][0], starts[i]]);
      });
      told.push(group.map(g => g.kind + " " + matchText(g.match)).join(", ") + ": " + lines.map(l => l[0]).join(", "));
    }
    edges.push(...used);
    const stacks = [["pods", "this node", "other clients", "all clients"].filter(who => clients.has(who)).map(who => [client(who)]), fronts, used];
    const gap = 14, between = 40, top = 26, heights = stacks.map(rows => rows.reduce((sum, row) => sum + tallest(row) + gap, -gap)), height = Math.max(...heights, line);
    const columns = stacks.flatMap((rows, i) => (i === 0 ? [0] : [0, 1]).map(c => rows.map(row => row[c])));
    let x = 1;
    columns.forEach((boxes, i) => {
      const stack = (i + 1) >> 1, wide = Math.max(60, ...boxes.map(b => b.width));
      let y = top + (height - heights[stack]) / 2;
      boxes.forEach((b, n) => { // the boxes of a row have the height of the tallest
        const room = tallest(stacks[stack][n]);
        Object.assign(b, {x, y: y + (room - b.height) / 2, wide});
        y += room + gap;
      });
      boxes.x = x;
      if (boxes.length > 0 || i < 3) x += wide + between;
    });
    const width = x - between + 2;
    const id = ("way-" + family + "-" + name).replace(/[^\w-]/g, "-");
    const out = s("svg", {width, height: height + top + 2, viewBox: "0 0 " + width + " " + (height + top + 2), role: "img", "aria-labelledby": id + "-t " + id + "-d"},
      s("title", {id: id + "-t"}, "Path of " + family + " packets to " + name), s("desc", {id: id + "-d"}, named(told.join(". "))));
    columns.forEach((c, i) => c.length > 0 && out.append(s("text", {class: "head", x: c.x, y: 14}, heads[i])));
    for (const [a, b, at] of edges) {
      const x1 = a.x + a.wide, y1 = at === undefined ? a.y + a.height / 2 : a.y + padding + at * line + line / 2 - 1, x2 = b.x, y2 = b.y + b.height / 2, bend = between / 2;
      out.append(s("path", {class: "edge", d: `M${x1} ${y1}C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2 - 6} ${y2}`}),
        s("path", {class: "arrow", d: `M${x2} ${y2}l-7 -3.5v7z`}));
    }
    for (const b of columns.flat()) {
      out.append(s("rect", {class: "box", x: b.x, y: b.y, width: b.wide, height: b.height, rx: 6}), ...b.lines.map(([text, kind], i) => {
        const long = text.length > longest;
        return s("text", {x: b.x + padding, y: b.y + padding + i * line + 12, class: kind}, long ? text.slice(0, longest - 1) + "…" : text, ...long ? [s("title", {}, text)] : []);
      }));
    }
    return out;
  }
  const samePort = (address, p) => p.backends.some(b => b.addrPort.split(":").at(-1) === address.split(":").at(-1));

  // ---- who may reach what

  const kinds = ["outside", "pods on this node", "pods elsewhere", "pods", "this node"];
  function matrix(rows, named) {
    const has = kinds.filter(k => rows.some(r => r.from.some(c => c.kind === k)));
    return table("Who can reach what", [...(named ? ["Service"] : []), "to", ...has], rows.map((r, i) => h("tr", {},
      named && h("th", {scope: "row"}, i > 0 && rows[i - 1].service === r.service ? h("span", {class: "hidden-text"}, r.service) : r.service === "/" ? "no Service" : serviceLink(r.service)),
      h("td", {class: "mono"}, r.to),
      has.map(k => {
        const clients = r.from.filter(c => c.kind === k);
        return h("td", {}, clients.length === 0 ? tag("faint", "– not proxied") : clients.map(c => h("div", {}, tag(...fates[c.fate]),
          c.who !== k && h("span", {class: "mono"}, " " + c.who.replace(" (" + k + ")", "").replace(k + " but ", "all but ")),
          c.fate === "served" && h("span", {class: "origin"}, count(c.backends, "backend") + (c.addr ? ", address " + c.addr : "")))));
      }))));
  }

  // paged shows rows a page at a time.
  function paged(rows, size, render) {
    const body = h("div"), at = h("span", {role: "status"});
    let first = 0;
    const go = to => {
      first = Math.max(0, Math.min(to, Math.floor(Math.max(0, rows.length - 1) / size) * size));
      fill(body, render(rows.slice(first, first + size)));
      at.textContent = rows.length === 0 ? "none" : figure(first + 1) + "–" + figure(Math.min(rows.length, first + size)) + " of " + figure(rows.length);
      back.disabled = first === 0;
      next.disabled = first + size >= rows.length;
    };
    const back = h("button", {type: "button", click: () => go(first - size)}, "Back"), next = h("button", {type: "button", click: () => go(first + size)}, "Next");
    go(0);
    return [h("div", {class: "bar"}, rows.length > size && [back, next], at), body];
  }

  function reach() {
    const text = h("input", {id: "reach-words", type: "search", autocomplete: "off", spellcheck: "false"});
    const fate = h("select", {id: "reach-fate"}, ["any", "served", "rejected", "dropped", "for some clients only"].map(f => h("option", {}, f)));
    const body = h("div");
    const refill = () => {
      const words = text.value.toLowerCase().split(/\s+/).filter(Boolean), want = fate.value;
      const rows = node.reach.filter(r => words.every(w => (r.service + " " + r.to).toLowerCase().includes(w)) &&
        (want === "any" || (want === "for some clients only" ? new Set(r.from.map(c => c.fate)).size > 1 : r.from.some(c => fates[c.fate][0] === want))));
      fill(body, paged(rows, 100, page => rows.length === 0 ? h("p", {}, "No row matches.") : matrix(page, true)));
    };
    text.addEventListener("input", refill);
    fate.addEventListener("change", refill);
    fill($("reach"), h("h2", {id: "reach-h"}, "Who can reach what"),
      h("p", {class: "faint"}, "Results for the first packet of each connection at node " + node.name + ": each row is a frontend, each column a kind of client.  Connections of a backend to itself are masqueraded, and have no column."),
      h("div", {class: "bar"}, h("label", {for: "reach-words"}, "Search"), text, h("label", {for: "reach-fate"}, "Result"), fate), body);
    refill();
  }

  // ---- findings

  function finding(f) {
    const where = f.file ? f.file + (f.line ? ":" + f.line + (f.column ? ":" + f.column : "") : "") : "";
    return [tag(f.severity), " ", h("b", {}, f.code), f.isNew && [" ", tag("added", "new")], " ", h("span", {class: "mono"}, [f.object, f.field].filter(Boolean).join(": ")), ": ", f.message,
      f.hint && " (" + f.hint + ")", f.more && " (and " + count(f.more, "other") + " like it)", where && h("span", {class: "origin mono"}, where),
      (f.why || f.do) && h("details", {}, h("summary", {}, "Effect and fix"), f.why && h("p", {}, f.why), f.do && h("p", {}, f.do))];
  }

  // suppressed names the objects that suppress findings about themselves, with these.
  function suppressed() {
    const codes = new Map(), fresh = new Set((page.new ? page.new.suppressed : []).map(f => f.object));
    for (const f of page.findings.suppressed) codes.set(f.object, (codes.get(f.object) || new Set()).add(f.code));
    return [...codes].sort(([a], [b]) => a < b ? -1 : 1).map(([object, of]) =>
      h("li", {}, "suppressed by an annotation of ", h("span", {class: "mono"}, object), ": " + [...of].sort().join(", "), fresh.has(object) && [" ", tag("added", "new")]));
  }

  function allFindings() {
    const list = page.findings.findings, hidden = suppressed(), names = ["all", "error", "warning", "info", ...(page.new ? ["new"] : [])];
    const which = h("select", {id: "severity"}, names.map(n => h("option", {}, n)));
    const body = h("div");
    const order = {error: 0, warning: 1, info: 2};
    const refill = () => {
      const some = list.filter(f => which.value === "all" || (which.value === "new" ? f.isNew : f.severity === which.value)).sort((a, b) => order[a.severity] - order[b.severity]);
      fill(body, paged(some, 200, part => h("ul", {class: "plain"}, part.map(f => {
        const m = /^(?:Service) (\S+\/\S+)$/.exec(f.object || "");
        return h("li", {}, finding(f), m && [" ", h("a", {href: "#services/" + encodeURIComponent(m[1])}, "show " + m[1])]);
      }))));
    };
    which.addEventListener("change", refill);
    fill($("findings"), h("h2", {id: "findings-h"}, "Findings"),
      h("p", {class: "faint"}, "Findings of proxyc lint." + (page.findings.suppressed && page.findings.suppressed.length ? " " + count(page.findings.suppressed.length, "finding") + " suppressed by annotations." : "")),
      hidden.length > 0 && paged(hidden, 200, part => h("ul", {class: "plain"}, part)),
      list.length > 0 ? h("div", {class: "bar"}, h("label", {for: "severity"}, "Show"), which) : h("p", {}, "No findings."), body);
    if (list.length > 0) refill();
  }

  // ---- differences

  const nodesText = nodes => nodes.slice(0, 5).join(", ") + (nodes.length > 5 ? " and " + (nodes.length - 5) + " more" : "");
  const onNodes = nodes => nodes.length < page.diff.doc.nodes.length && h("span", {class: "origin"}, "on " + nodesText(nodes));
  // effectOf is the class of a part of a change.
  const effectOf = (f, text, opens) => ({"+": "added", "-": "removed"})[text[0]] || (f.before.fate !== f.after.fate && text.includes(" → ") && (opens ? "opens" : fates[f.after.fate][0]));

  // flows are the changes of one Service with one effect.
  const flows = change => [
    change.flows.length > 0 && table("Flows", ["to", "clients", "change", "decided by"], change.flows.map(f => h("tr", {},
      h("td", {class: "mono"}, f.to.map(t => h("div", {}, (page.diff.both ? f.family + " " : "") + t))), h("td", {}, f.clients, onNodes(f.nodes)),
      h("td", {}, f.change.split(/; | (?=[+-])/).map(t => h("div", {class: effectOf(f, t, change.effect === "opens")}, t))),
      h("td", {class: "faint"}, f.before.cause === f.after.cause ? f.after.cause : [h("div", {}, "was: " + f.before.cause), h("div", {}, "is: " + f.after.cause)])))),
    change.notes && h("ul", {class: "plain"}, change.notes.map(n => h("li", {}, n.family + " " + n.what + ": " + (n.before || "none") + " → " + (n.after || "none"), n.nodes && onNodes(n.nodes)))),
  ];

  function diff() {
    const out = [h("h2", {id: "diff-h"}, "Differences")];
    if (!page.diff) {
      fill($("diff"), ...out, h("p", {}, "No comparison. To compare, run proxyc report --against OLD."));
      return;
    }
    const {doc, summary, entries} = page.diff;
    out.push(h("p", {}, summary));
    if (entries.length > 0) {
      out.push(h("h3", {}, "Services"), ...paged(entries, 50, part => part.map(e => h("div", {class: "entry " + e.service.effect},
        h("h4", {}, tag(e.service.effect), " ", tag(e.service.action), " ", e.names.length === 1 ? e.names[0] ? serviceLink(e.names[0]) : "no Service" : count(e.names.length, "Service") + " with the same change, shown for the first:"),
        e.names.length > 1 && listed(e.names), flows(e.service)))));
    }
    if (doc.settings.length > 0) {
      out.push(h("h3", {}, "Settings"), table("Settings", ["setting", "before", "after"], doc.settings.map(d =>
        h("tr", {}, h("th", {scope: "row"}, d.path + (d.nodes ? " (" + nodesText(d.nodes) + ")" : "")), h("td", {class: "mono"}, d.before || "none"), h("td", {class: "mono"}, d.after || "none")))));
    }
    fill($("diff"), out);
  }

  // ---- trace: a packet among the stored results

  function trace() {
    const [from, to] = ["from", "to"].map(id => h("input", {id, autocomplete: "off", spellcheck: "false", required: id === "to", "aria-describedby": id + "-help"}));
    const out = h("div", {id: "course", role: "status"});
    const run = e => {
      if (e) e.preventDefault();
      try { fill(out, course(from.value.trim(), to.value.trim())); } catch (err) { fill(out, h("p", {class: "error"}, err.message)); }
      history.replaceState(null, "", "#trace?" + new URLSearchParams({from: from.value, to: to.value}));
    };
    const help = (id, text, ...more) => h("div", {class: "bar"}, h("span", {id: id + "-help", class: "faint"}, text), more);
    fill($("trace"), h("h2", {id: "trace-h"}, "Trace a packet"),
      h("p", {class: "faint"}, "The stored result for the first packet of a new connection at node " + node.name + ", and the command that shows every step."),
      h("form", {submit: run}, h("label", {for: "from"}, "From"), from, help("from", "IP or IP@INTERFACE; empty for all clients"),
        h("label", {for: "to"}, "To"), to, help("to", "IP:PORT, IP:PORT/udp or NAMESPACE/NAME:PORT", h("button", {class: "main", type: "submit"}, "Trace"))), out);
    trace.fill = (a, b) => {
      [from.value, to.value] = [a, b];
      if (b) run();
    };
  }

  // bits returns an address as binary digits; "" for other texts.
  function bits(text) {
    const binary = (n, size) => Number(n).toString(2).padStart(size, "0"), v4 = text.split(".");
    if (v4.length === 4 && v4.every(n => /^(0|[1-9]\d{0,2})$/.test(n) && n < 256)) return v4.map(n => binary(n, 8)).join("");
    const url = "http://[" + text + "]";
    if (!/^[\da-f:.]*:[\da-f:.]*$/i.test(text) || !URL.canParse(url)) return "";
    const [head, tail] = new URL(url).hostname.slice(1, -1).split("::").map(part => part.split(":").filter(Boolean));
    return [...head, ...(tail ? [...Array(8 - head.length - tail.length).fill("0"), ...tail] : [])].map(n => binary("0x" + n, 16)).join("");
  }
  const inside = (addr, prefixes) => (prefixes || []).some(p => {
    const [base, length] = p.split("/"), at = bits(base);
    return at.length === addr.length && at.startsWith(addr.slice(0, length));
  });

  // client returns the stored results for a source, one or none. Without an interface, an address of the node means the node.
  function client(row, src, by, dst) {
    const {detector, addrs} = node.programs.find(p => p.family === (src.length === 32 ? "IPv4" : "IPv6")).node, loopback = addr => inside(addr, ["127.0.0.0/8", "::1/128"]);
    const own = (addrs || []).some(a => bits(a) === src), here = inside(src, node.here), pods = here || inside(src, node.pods) || detector.mode === "cidr" && inside(src, [detector.prefix]);
    const carried = loopback(dst) || node.carries && !row.to.startsWith("NodePort"); // the kernel uses it as the source, too
    const isNode = !by && (carried ? src === dst : own), named = x => x.endsWith("*") ? (by || "eth0").startsWith(x.slice(0, -1)) : (by || "eth0") === x;
    if (!isNode && (own || loopback(src) || src === dst)) return [];
    const split = row.from.some(c => c.interface && c.kind === "pods on this node"); // such pods are detected by interface
    const has = {"outside": !pods, "pods": pods, "pods on this node": here || split, "pods elsewhere": pods && (split || !here), "this node": true};
    return row.from.filter(c => (c.kind === "this node") === isNode && (isNode || (!c.interface || named(c.interface)) && !(c.notBy || []).some(named)) &&
      (c.prefixes ? inside(src, c.prefixes) : has[c.kind] && !inside(src, c.but)));
  }

  // shellWord quotes a word of a command where a shell would take it for more: a link may name any interface.
  const shellWord = word => /^[\w@%+=:,./[\]-]+$/.test(word) ? word : "'" + word.replaceAll("'", "'\\''") + "'";

  function course(from, to) {
    const [, source, by] = /^([^@]*)@?(.*)$/s.exec(from), src = bits(source), [standIn, kind = ""] = /^(?:(\w+ )of )?/.exec(to);
    const [, v6, host = v6, port, protocol] = /^(?:\[(.+)\]|([^:]+)):([\w-]+)(?:\/(tcp|udp|sctp))?$/i.exec(to.slice(standIn.length)) || [], dst = bits(host || ""), service = all.find(s => s.name === host);
    if (from && !src) throw new Error("source " + JSON.stringify(from) + ": must be IP or IP@INTERFACE");
    if (!dst && !service) throw new Error("destination " + JSON.stringify(to) + ": must be IP:PORT, IP:PORT/PROTO or NAMESPACE/NAME:PORT of a Service, with PROTO tcp, udp or sctp");
    if (src && dst && src.length !== dst.length) throw new Error("source " + source + " and destination " + host + " are of different families");
    const fronts = service ? Object.values(service.families).flatMap(x => x.frontends || []) : [], names = fronts.filter(f => kind && String(f.match.port) === port).map(f => f.port.port), named = r => fronts.some(f => [port, ...names].includes(f.port.port) && f.match.port === r.port && f.match.protocol === r.protocol);
    const found = node.reach.filter(r => r.to.startsWith(kind) && (String(r.port) === port || service && r.service === host && named(r)) && r.protocol === (protocol || (service ? r.protocol : "tcp")).toLowerCase() &&
      (service ? r.service === host && (!src || bits(r.addrs[0][0]).length === src.length) : r.addrs.some(([a, b]) => bits(a).length === dst.length && bits(a) <= dst && dst <= bits(b))));
    const rows = src ? found.map(r => ({...r, from: client(r, src, by, dst || bits(r.addrs[0][0]))})) : found, missing = rows.filter(r => r.from.length === 0);
    return [
      h("h3", {}, h("span", {class: "mono"}, (from || "all clients") + " → " + to)),
      rows.filter(r => r.from.length > 0).map(r => matrix([r], true)),
      found.length === 0 && h("p", {}, "No frontend of node " + node.name + " is at this destination. The page stores no results for others."),
      missing.length > 0 && h("p", {}, "The page stores no result for this client at " + missing.map(r => r.to).join(", ") + "."),
      h("h4", {}, "Step by step"), h("pre", {}, "proxyc trace -c CONFIG -s SNAPSHOT --hostname-override " + [node.name, "--from", from || "IP", "--to", to].map(shellWord).join(" ")),
    ];
  }

  // ---- the whole

  const sections = ["overview", "services", "reach", "findings", "diff", "trace"];
  const drawn = new Set();
  const draw = {overview, services, reach, findings: allFindings, diff, trace};

  function drawOnce(section) {
    if (!drawn.has(section)) draw[section]();
    drawn.add(section);
  }

  function route() {
    const [name, rest] = location.hash.slice(1).split(/[/?](.*)/s), section = sections.includes(name) ? name : "overview";
    if ($(section).hidden) scrollTo(0, 0);
    for (const id of sections) $(id).hidden = id !== section;
    for (const a of document.querySelectorAll("nav a")) {
      a.ariaCurrent = a.getAttribute("href") === "#" + section ? "page" : null;
    }
    drawOnce(section);
    if (section === "services") {
      rows();
      if (rest) open(decoded(rest));
    }
    if (section === "trace" && rest) {
      const q = new URLSearchParams(rest);
      trace.fill(q.get("from"), q.get("to"));
    }
    document.title = "proxyc report: " + (page.cluster ? page.cluster + ": " : "") + $(section).querySelector("h2").textContent;
  }

  // What is printed: everything but the forms, and the drawings of the Services that the list shows.
  addEventListener("beforeprint", () => {
    for (const id of ["overview", "services", "findings", "diff"]) drawOnce(id);
    for (const id of sections) $(id).hidden = ["services", "reach", "trace"].includes(id);
    const some = shown.slice(0, 200);
    fill($("printed"), h("h2", {}, "Services"),
      shown.length > some.length && h("p", {}, "The first " + some.length + " of " + count(shown.length, "Service") + ". Use the search for others."), some.map(x => service(x, "h3")));
    $("printed").hidden = false;
  });
  addEventListener("afterprint", () => {
    $("printed").hidden = true;
    fill($("printed"));
    route();
  });

  addEventListener("hashchange", route);
  addEventListener("resize", () => { if (list && !$("services").hidden) rows(); });
  $("words").addEventListener("input", () => {
    if ($("services").hidden) { // not by the location, which would take the focus
      history.pushState(null, "", "#services");
      route();
    }
    filter();
  });
  $("words").addEventListener("keydown", e => {
    if (e.key !== "ArrowDown" || !list) return;
    e.preventDefault();
    list.focus();
    if (chosen < 0 && shown.length > 0) pick(0);
  });
  $("search").addEventListener("submit", e => {
    e.preventDefault();
    if (list && shown.length > 0) pick(Math.max(0, chosen));
  });
  addEventListener("keydown", e => {
    if (e.key !== "/" || e.ctrlKey || e.metaKey || e.altKey || /^(INPUT|SELECT|TEXTAREA)$/.test(e.target.tagName)) return;
    e.preventDefault();
    $("words").focus();
  });

  async function start() {
    const blocks = [...document.querySelectorAll("script[data-name]")];
    page = await decode($("page"));
    indexPage();
    blocks.forEach((b, i) => $("node").append(h("option", {value: i}, b.dataset.name)));
    $("nodes").hidden = blocks.length < 2;
    $("node").addEventListener("change", async () => {
      await choose($("node").value);
      drawn.clear();
      [shown, chosen] = [[], -1];
      route();
    });
    await choose(0);
    $("opening").hidden = true;
    route();
    performance.mark("ready");
    document.documentElement.dataset.ready = "true";
  }
  start().catch(err => {
    $("opening").textContent = "This page could not be opened: " + err.message;
    document.documentElement.dataset.ready = "false";
  });
})();
