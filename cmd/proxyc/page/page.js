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
  const standIn = /(?:\b\d+(?:\.\d+){3}|\[[0-9a-f:]+\]|\bnode):([3-6]\d{4})(?=\/(?:tcp|udp|sctp))|(ClusterIP |LoadBalancer )?(\b24[4-7](?:\.\d+){3}|\[?\b100::[0-9a-f:]+\]?)|(NodePort (?:node:)?|health check on port |such as )([3-6]\d{4})\b/g;
  const named = text => page?.standIns ? text.replace(standIn, (found, own, kind = "", addr = "", port = "", number) => {
    const name = page.standIns[own || number || addr.replace(/[[\]]/g, "")];
    if (own) return name ? "NodePort " + name : found.replace(/^.*(?=:\d+$)/, named);
    if (name && port === "such as ") return port + "the one";
    return !name ? found : port.replace("node:", "") + (name.startsWith(kind) ? "" : kind) + name;
  }) : text;
  // unnamed is the address of a sender, of a family, for which a name stands; or the text itself.
  const unnamed = (text, six) => {
    for (const [addr, name] of Object.entries(page.standIns || {})) {
      if ((text === name || text.startsWith(name + "@")) && /[.:]/.test(addr) && addr.includes(":") === six) return addr + text.slice(name.length);
    }
    return text;
  };
  const fill = (e, ...children) => e.replaceChildren(...parts(children));
  const numbers = new Intl.NumberFormat("en"), figure = n => numbers.format(n);
  const count = (n, one, many) => figure(n) + " " + (n === 1 ? one : many || one + "s");
  const tag = (kind, text) => h("span", {class: "tag " + kind}, text || kind);
  const fates = {"accepted": ["served", "✓ served"], "rejected": ["refused", "✕ refused"], "dropped": ["dropped", "⌀ dropped"], "not ours": ["faint", "– not proxied"]};
  // decoded is a part of the page's address, which may be cut off.
  const decoded = text => { try { return decodeURIComponent(text); } catch { return text; } };
  const serviceLink = name => h("a", {href: "#services/" + encodeURIComponent(name)}, name);

  // table makes a table that scrolls by itself where it is too wide.
  function table(caption, heads, rows) {
    return h("div", {class: "wide", tabindex: "0", role: "region", "aria-label": caption},
      h("table", {}, h("caption", {class: "hidden-text"}, caption),
        h("thead", {}, h("tr", {}, heads.map(t => h("th", {scope: "col"}, t)))), h("tbody", {}, rows)));
  }

  async function decode(element) {
    const text = element.textContent.trim();
    let bytes;
    if (Uint8Array.fromBase64) bytes = Uint8Array.fromBase64(text);
    else {
      const raw = atob(text);
      bytes = new Uint8Array(raw.length);
      for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
    }
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
    return JSON.parse(await new Response(stream).text());
  }

  let node;          // what is known of the chosen node
  let all = [];      // its Services, by name
  const changes = new Map(), findings = new Map(); // by Service; changes separately by effect, the most dangerous first

  // ---- the data of a node

  async function choose(i) {
    node = await decode($("node-" + i));
    node.sides = Object.fromEntries(node.programs.map(p => [p.family, sim.index(p, node.caps)]));
    const byName = new Map();
    const of = name => {
      let s = byName.get(name);
      if (!s) byName.set(name, s = {name, families: {}, reach: []});
      return s;
    };
    for (const p of node.programs) {
      for (const s of p.services || []) of(sim.nameText(s.name)).families[p.family] = s;
    }
    for (const w of page.without || []) of(w.name).why = w.why;
    for (const name of changes.keys()) if (name) of(name); // what changes of no Service's has none
    for (const row of node.reach) if (byName.has(row.service)) of(row.service).reach.push(row);
    all = [...byName.values()].sort((a, b) => a.name < b.name ? -1 : a.name > b.name ? 1 : 0);
    for (const s of all) {
      const words = [s.name], at = [];
      s.unserved = false;
      for (const svc of Object.values(s.families)) {
        for (const f of svc.frontends || []) {
          const m = sim.matchText(f.match);
          at.push(m);
          words.push(f.kind, m, f.port.port || "");
          const routes = f.routes || [];
          if (routes.length === 0 || routes[routes.length - 1].from !== "any") s.unserved = true;
        }
        for (const p of svc.pools || []) for (const b of p.backends) words.push(b.addrPort);
      }
      s.at = at.length > 0 ? at[0] + (at.length > 1 ? " and " + (at.length - 1) + " more" : "") : s.why || "has no rules on this node";
      s.words = words.join(" ").toLowerCase();
    }
  }

  function indexPage() {
    for (const s of (page.diff ? page.diff.doc.services : [])) changes.set(s.name, [...(changes.get(s.name) || []), s]);
    const known = new Set((page.new ? page.new.findings : []).map(findingKey));
    for (const f of page.findings.findings) {
      f.isNew = known.has(findingKey(f));
      const m = /^(?:Service|EndpointSlice|Endpoints) (\S+\/\S+)$/.exec(f.object || "");
      if (!m) continue;
      if (!findings.has(m[1])) findings.set(m[1], []);
      findings.get(m[1]).push(f);
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
    if (words.length > 0) { // what has the words in its name comes first
      const named = s => words.every(w => s.name.includes(w));
      shown = [...shown.filter(named), ...shown.filter(s => !named(s))];
    }
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
    if (chosen >= from && chosen < to) list.setAttribute("aria-activedescendant", "row-" + chosen);
    else list.removeAttribute("aria-activedescendant");
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
    const top = i * rowHeight;
    if (top < list.scrollTop) list.scrollTop = top;
    else if (top + rowHeight > list.scrollTop + list.clientHeight) list.scrollTop = top + rowHeight - list.clientHeight;
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
    if (i >= 0 && (i !== chosen || !detail.hasChildNodes())) {
      list.scrollTop = i * rowHeight - list.clientHeight / 2;
      pick(i);
    }
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
        h("span", {class: "origin"}, sim.originText(r.origin))));
      if (leftOver(f)) ways.push(h("div", {class: verdict(f)}, "else " + verdict(f), h("span", {class: "origin"}, sim.originText(f.fallbackOrigin))));
      rows.push(h("tr", {}, h("td", {class: "mono"}, f.kind + " " + sim.matchText(f.match), h("span", {class: "origin"}, sim.originText(f.origin))),
        h("td", {}, f.policy), h("td", {}, (f.sourceRanges || []).map(r => h("div", {class: "mono"}, r.prefix)), !f.sourceRanges && "everybody"), h("td", {}, ways)));
    }
    return h("details", {}, h("summary", {}, family + ": " + count(rows.length, "frontend") + ", with the deciding fields"),
      table("Frontends, " + family, ["frontend", "traffic policy", "admits", "clients → pool"], rows));
  }

  function backends(svc, family) {
    const rows = (svc.pools || []).flatMap(p => p.backends.map(b => h("tr", {}, h("td", {}, poolText(p)), h("td", {class: "mono"}, b.addrPort),
      h("td", {}, b.local ? "on this node" : ""), h("td", {class: "faint"}, sim.originText(b.origin)))));
    if (rows.length === 0) return h("p", {}, family + ": no backend.");
    return h("details", {}, h("summary", {}, family + ": " + count(rows.length, "backend") + " in " + count(svc.pools.length, "pool")),
      svc.pools.map(p => h("p", {class: "faint"}, poolText(p) + ": " + sim.originText(p.origin))),
      table("Backends, " + family, ["pool", "backend", "", "decided by"], rows));
  }

  const verdict = f => f.fallback === "drop" ? "dropped" : "refused";
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
  function few(lines, one) {
    if (lines.length <= most) return lines;
    return [...lines.slice(0, most - 1), ["and " + count(lines.length - most + 1, one) + " more", "faint"]];
  }

  function drawing(svc, name, family, change) {
    const heads = ["client", "frontend", "traffic policy", "pool", "backends"], columns = [[], [], [], [], []], edges = [];
    const clients = new Map(), told = [];
    const client = who => {
      if (!clients.has(who)) {
        clients.set(who, box([[who, "strong"]]));
        columns[0].push(clients.get(who));
      }
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
      const at = box(few(lines, "backend"));
      return {head, at};
    });
    const groups = new Map();
    for (const f of svc.frontends || []) {
      const like = JSON.stringify([f.policy, f.port, (f.routes || []).map(r => [r.from, r.pool, r.snat]), leftOver(f) && f.fallback, (f.sourceRanges || []).map(r => r.prefix)]);
      if (!groups.has(like)) groups.set(like, []);
      groups.get(like).push(f);
    }
    const used = new Set();
    for (const group of groups.values()) {
      const f = group[0], routes = f.routes || [];
      const front = box([[f.port.port ? "port " + f.port.port : "port without a name", "strong"], ...few(group.map(g => [g.kind + " " + sim.matchText(g.match), ""]), "frontend")]);
      const lines = [[f.policy, "strong"]];
      if (f.sourceRanges) {
        const ranges = f.sourceRanges.map(r => r.prefix);
        for (const r of few(ranges.map(r => ["only " + r, ""]), "range")) lines.push(r);
        lines.push(["others dropped", "dropped"]);
      }
      const starts = routes.map(r => {
        lines.push([scope(r.from, f) + ": " + (r.snat ? "masqueraded" : "address kept"), "served"]);
        return lines.length - 1;
      });
      if (leftOver(f)) lines.push([(routes.length > 0 ? "other clients: " : "all clients: ") + verdict(f), verdict(f)]);
      const policy = box(lines);
      columns[1].push(front);
      columns[2].push(policy);
      const who = routes.map(r => scope(r.from, f));
      if (leftOver(f)) who.push(routes.length > 0 ? "other clients" : "all clients");
      for (const w of who) edges.push([client(w), front]);
      edges.push([front, policy]);
      routes.forEach((r, i) => {
        const p = pools[r.pool];
        if (!used.has(p)) {
          used.add(p);
          columns[3].push(p.head);
          columns[4].push(p.at);
          p.row = [p.head, p.at];
          edges.push([p.head, p.at]);
        }
        edges.push([policy, p.head, starts[i]]);
      });
      told.push(group.map(g => g.kind + " " + sim.matchText(g.match)).join(", ") + ": " + lines.map(l => l[0]).join(", "));
    }
    const order = ["pods", "this node", "other clients", "all clients"];
    columns[0].sort((a, b) => order.indexOf(a.lines[0][0]) - order.indexOf(b.lines[0][0]));
    // Boxes of one row are as high as the highest of them.
    const gap = 14, between = 40, top = 26;
    const together = [[1, 2], [3, 4]];
    for (const [a, b] of together) {
      columns[a].forEach((x, i) => {
        const room = Math.max(x.height, columns[b][i].height);
        x.room = columns[b][i].room = room;
      });
    }
    for (const c of columns[0]) c.room = c.height;
    const heights = columns.map(c => c.reduce((sum, x) => sum + x.room + gap, -gap));
    const height = Math.max(...heights, line), widths = columns.map(c => Math.max(60, ...c.map(x => x.width)));
    let x = 1;
    columns.forEach((c, i) => {
      let y = top + (height - heights[i]) / 2;
      for (const one of c) {
        Object.assign(one, {x, y: y + (one.room - one.height) / 2, wide: widths[i]});
        y += one.room + gap;
      }
      c.x = x;
      if (c.length > 0 || i < 3) x += widths[i] + between;
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
    for (const c of columns) {
      for (const one of c) {
        out.append(s("rect", {class: "box", x: one.x, y: one.y, width: one.wide, height: one.height, rx: 6}));
        one.lines.forEach(([text, kind], i) => {
          const long = text.length > longest;
          const t = s("text", {x: one.x + padding, y: one.y + padding + i * line + 12, class: kind}, long ? text.slice(0, longest - 1) + "…" : text);
          if (long) t.append(s("title", {}, text));
          out.append(t);
        });
      }
    }
    return out;
  }
  const samePort = (address, p) => p.backends.some(b => sim.splitHostPort(b.addrPort)[1] === sim.splitHostPort(address)[1]);

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
          c.fate === "accepted" && h("span", {class: "origin"}, count(c.backends, "backend") + (c.addr ? ", address " + c.addr : "")))));
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
    const bar = rows.length > size ? h("div", {class: "bar"}, back, next, at) : h("div", {class: "bar"}, at);
    go(0);
    return [bar, body];
  }

  function reach() {
    const text = h("input", {id: "reach-words", type: "search", autocomplete: "off", spellcheck: "false"});
    const fate = h("select", {id: "reach-fate"}, ["any", "served", "refused", "dropped", "for some clients only"].map(f => h("option", {}, f)));
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

  const fateWords = {"accepted": "served", "rejected": "refused", "dropped": "dropped", "not ours": "not proxied"};
  function clientsText(from) {
    const whole = new Set(from.filter(c => c.all).map(c => c.kind));
    if (whole.size === from.length && whole.has("outside") && whole.has("this node") && (whole.has("pods") || whole.has("pods elsewhere") && whole.has("pods on this node"))) return "all clients";
    return from.map(c => {
      const some = (l, n) => l.slice(0, n).map(p => p.replace(/\/32$|(:.*)\/128$/, "$1")).join(", ") + (l.length > n ? " and " + (l.length - n) + " more" : "");
      let t = c.kind;
      if (!c.all) t = c.but && c.but.length < c.prefixes.length ? c.kind + " but " + some(c.but, 4) : some(c.prefixes, 4) + " (" + c.kind + ")";
      return t + (c.interface ? " by " + c.interface : "");
    }).join(", ");
  }

  // flows are the changes of one Service with one effect.
  function flows(change) {
    const out = [];
    if (change.flows.length > 0) {
      out.push(table("Flows", ["to", "clients", "change", "decided by"], change.flows.map(f => {
        const parts = [];
        if (f.before.fate !== f.after.fate) parts.push([change.effect === "opens" ? "opens" : fates[f.after.fate][0], fateWords[f.before.fate] + " → " + fateWords[f.after.fate]]);
        for (const b of f.added || []) parts.push(["added", "+\u00a0" + b.address]);
        for (const b of f.removed || []) parts.push(["removed", "−\u00a0" + b.address]);
        if (f.moved) parts.push(["", Math.round(f.moved * 100) + " % of connections move"]);
        if (f.targets) parts.push(["opens", "to " + f.targets.join(", ") + " now"]);
        if (f.waits) parts.push(["", f.waits]);
        if (f.after.clientAddress !== f.before.clientAddress && f.after.clientAddress) parts.push(["", "client address " + (f.before.clientAddress ? f.before.clientAddress + " → " : "") + f.after.clientAddress]);
        if (f.after.affinity !== f.before.affinity) parts.push(["", "affinity " + (f.before.affinity || "none") + " → " + (f.after.affinity || "none")]);
        const everywhere = f.nodes.length === page.diff.doc.nodes.length;
        return h("tr", {}, h("td", {class: "mono"}, f.to.map(t => h("div", {}, (page.diff.both ? f.family + " " : "") + t))), h("td", {}, clientsText(f.from), !everywhere && h("span", {class: "origin"}, "on " + nodesText(f.nodes))),
          h("td", {}, parts.map(([k, t]) => h("div", {class: k}, t))),
          h("td", {class: "faint"}, f.before.cause === f.after.cause ? f.after.cause : [h("div", {}, "was: " + f.before.cause), h("div", {}, "is: " + f.after.cause)]));
      })));
    }
    if (change.notes) out.push(h("ul", {class: "plain"}, change.notes.map(n => h("li", {}, n.family + " " + n.what + ": " + (n.before || "none") + " → " + (n.after || "none") +
      (n.nodes && n.nodes.length < page.diff.doc.nodes.length ? " (on " + nodesText(n.nodes) + ")" : "")))));
    return out;
  }
  const nodesText = nodes => nodes.slice(0, 5).join(", ") + (nodes.length > 5 ? " and " + (nodes.length - 5) + " more" : "");

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

  // ---- trace

  function trace() {
    const from = h("input", {id: "from", autocomplete: "off", spellcheck: "false", required: true, "aria-describedby": "from-help"});
    const to = h("input", {id: "to", autocomplete: "off", spellcheck: "false", required: true, "aria-describedby": "to-help"});
    const out = h("div", {id: "course", role: "status"});
    const p4 = node.programs.find(p => p.family === "IPv4"), p6 = node.programs.find(p => p.family === "IPv6");
    const inside = (prefix, n) => { const a = sim.parseAddr(prefix.split("/")[0]); return sim.formatAddr({v: a.v + n, bits: a.bits}); };
    // examples of senders, of the family of the destination.
    const sender = kind => {
      const six = (resolve(to.value) || "").startsWith("["), p = six ? p6 : p4, of = list => (list || []).find(x => x.includes(":") === six);
      const own = p && (p.node.ip || (p.node.addrs || [])[0]);
      const here = of(node.here), elsewhere = (node.pods || []).find(x => x.includes(":") === six && x !== here && !(here && sim.contains(x, sim.parseAddr(here.split("/")[0])))) || of(node.pods);
      return {"outside": (six ? "2001:db8:ffff::1" : "203.0.113.250") + "@eth0", "pod on this node": here && inside(here, 250n) + "@" + node.interface,
        "pod elsewhere": elsewhere && inside(elsewhere, 250n) + "@eth0", "this node": own}[kind];
    };
    const chips = ["outside", "pod on this node", "pod elsewhere", "this node"].map(kind => h("button", {type: "button", click: () => {
      const example = sender(kind);
      if (example) from.value = named(example);
      if (to.value) run();
    }}, kind));
    const run = e => {
      if (e) e.preventDefault();
      let result;
      try { result = course(from.value.trim(), to.value.trim()); } catch (err) { result = h("p", {class: "error"}, err.message); }
      fill(out, result);
      history.replaceState(null, "", "#trace?" + new URLSearchParams({from: from.value, to: to.value}));
    };
    fill($("trace"), h("h2", {id: "trace-h"}, "Trace a packet"),
      h("p", {class: "faint"}, "The first packet of a new connection, in the rules of node " + node.name + "."),
      h("form", {submit: run},
        h("label", {for: "from"}, "From"), from, h("div", {class: "bar"}, h("span", {id: "from-help", class: "faint"}, "IP or IP@INTERFACE; for example"), chips),
        h("label", {for: "to"}, "To"), to, h("div", {class: "bar"}, h("span", {id: "to-help", class: "faint"}, "IP:PORT, IP:PORT/udp or NAMESPACE/NAME:PORT"), h("button", {class: "main", type: "submit"}, "Trace"))), out);
    trace.fill = (a, b) => {
      if (b) to.value = named(b);
      if (a) from.value = named(a);
      else if (b) from.value = sender("outside") || "";
      if (a || b) run();
    };
  }

  // resolve returns what the name of a Service stands for: its ClusterIP, or the kind of frontend before it; or the text itself.
  function resolve(to) {
    const m = /^(?:(ClusterIP|ExternalIP|LoadBalancer|NodePort) of )?([a-z0-9-]+\/[a-z0-9.-]+)(?::([\w-]+))?(?:\/(tcp|udp|sctp))?$/i.exec(to);
    if (!m) return to;
    const kind = m.splice(1, 1)[0] || "ClusterIP", one = all.find(x => x.name === m[1]);
    if (!one) throw new Error("there is no Service " + m[1]);
    const fronts = Object.values(one.families).flatMap(x => x.frontends || []).filter(f => f.kind === kind);
    const f = fronts.find(f => (!m[2] || f.port.port === m[2] || String(f.match.port) === m[2] || page.standIns?.[f.match.port]?.endsWith(":" + m[2])) && (!m[3] || f.match.protocol === m[3].toLowerCase()));
    if (!f) throw new Error("Service " + m[1] + " has the ports " + [...new Set(fronts.map(f => f.port.port || f.match.port))].join(", ") + ", not " + (m[2] || "any"));
    if (kind === "NodePort") return sim.hostPort(node.programs[0].node.ip, f.match.port) + "/" + f.match.protocol;
    return sim.matchText(f.match);
  }

  // shellWord quotes a word of a command where a shell would take it for more: a link may name any interface.
  const shellWord = word => /^[\w@%+=:,./[\]-]+$/.test(word) ? word : "'" + word.replaceAll("'", "'\\''") + "'";

  function course(from, to) {
    const target = resolve(to), pkt = sim.packet(unnamed(from, target.startsWith("[")), target), side = node.sides[sim.familyOf(pkt.dst)];
    if (!side) throw new Error("node " + node.name + " has no rules of this family");
    const src = sim.formatAddr(pkt.src), dst = sim.formatAddr(pkt.dst), own = side.own.has(src);
    if (!from.includes("@") && !own) pkt.in = "eth0";
    if (/^pod /.test(page.standIns?.[src])) { // it has an address of the pods' range
      const range = [...(node.here || []), ...(node.pods || [])].find(x => x.includes(":") === src.includes(":"));
      if (range) pkt.within = sim.parseAddr(range.split("/")[0]);
    }
    const t = sim.trace(side, pkt), at = sim.hostPort(dst, pkt.port) + "/" + pkt.protocol;
    const served = t.fate === "accepted" || t.others.includes("accepted"); // maybe by chance
    const steps = list => list.map(x => h("li", {}, x.text, x.origin && h("span", {class: "origin"}, x.origin)));
    const elsewhere = page.addresses && page.addresses[dst];
    return [
      h("h3", {}, h("span", {class: "mono"}, src + (pkt.in ? "@" + pkt.in : " (the node)") + " → " + at)),
      h("p", {class: "outcome"}, [t.fate, ...t.others].map((f, i) => [i > 0 && " or, by chance, ", tag(...fates[f])]), served ? " by " + (t.destinations.length === 1 ? "" : "one of ") + count(t.destinations.length, "backend") : ""),
      served && h("ul", {class: "plain"}, t.destinations.map(d => h("li", {}, h("span", {class: "mono"}, d.address), d.masquerade ? ", which sees an address of the node" : ", which sees the client's address")),
        t.affinity && h("li", {}, "The client keeps its backend for " + t.affinity + ".")),
      elsewhere && elsewhere !== node.name && t.fate === "not ours" && h("p", {}, dst + " is an address of node " + elsewhere + ", whose rules decide: choose that node."),
      h("h4", {}, "Step by step"), h("ol", {class: "steps"}, steps(t.steps)),
      t.hindrances.length > 0 && [h("h4", {}, "Required for it to be served"), h("ul", {class: "plain"}, steps(t.hindrances))],
      h("h4", {}, "The same on the command line"), h("pre", {}, "proxyc trace -c CONFIG -s SNAPSHOT --hostname-override " + shellWord(node.name) + " --from " + shellWord(named(src + (pkt.in ? "@" + pkt.in : ""))) + " --to " + shellWord(named(at))),
    ];
  }

  // ---- the whole

  const sections = ["overview", "services", "reach", "findings", "diff", "trace"];
  const drawn = new Set();
  const draw = {overview, services, reach, findings: allFindings, diff, trace};

  function route() {
    const [name, rest] = location.hash.slice(1).split(/[/?](.*)/s), section = sections.includes(name) ? name : "overview";
    if ($(section).hidden) scrollTo(0, 0);
    for (const id of sections) $(id).hidden = id !== section;
    for (const a of document.querySelectorAll("nav a")) {
      if (a.getAttribute("href") === "#" + section) a.setAttribute("aria-current", "page");
      else a.removeAttribute("aria-current");
    }
    if (!drawn.has(section)) {
      drawn.add(section);
      draw[section]();
    }
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

  function redraw() {
    drawn.clear();
    shown = [];
    chosen = -1;
    route();
  }

  // What is printed: everything but the forms, and the drawings of the Services that the list shows.
  const printedMost = 200;
  addEventListener("beforeprint", () => {
    for (const id of ["overview", "services", "findings", "diff"]) {
      if (!drawn.has(id)) { drawn.add(id); draw[id](); }
      $(id).hidden = id === "services";
    }
    for (const id of ["reach", "trace"]) $(id).hidden = true;
    const some = shown.slice(0, printedMost);
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
    $("node").addEventListener("change", async () => { await choose($("node").value); redraw(); });
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
