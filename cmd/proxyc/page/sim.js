"use strict";
// What the IR means for the first packet of a connection: package ir/sim, step by step and word by
// word, over the document that compile -o ir-json writes. A test holds both against each other.
const sim = (() => {
  // ---- addresses: {v: BigInt, bits: 32 or 128}

  function parse4(text) {
    const m = /^(\d{1,3})\.(\d{1,3})\.(\d{1,3})\.(\d{1,3})$/.exec(text);
    if (!m) return null;
    let v = 0n;
    for (const part of m.slice(1)) {
      if (part.length > 1 && part[0] === "0" || Number(part) > 255) return null;
      v = v << 8n | BigInt(part);
    }
    return v;
  }

  function parseAddr(text) {
    const v4 = parse4(text);
    if (v4 !== null) return {v: v4, bits: 32};
    if (!text.includes(":")) return null;
    let head = text;
    const tail = /^(.*:)(\d+\.\d+\.\d+\.\d+)$/.exec(text);
    if (tail) {
      const v = parse4(tail[2]);
      if (v === null) return null;
      head = tail[1] + (v >> 16n).toString(16) + ":" + (v & 0xffffn).toString(16);
    }
    const halves = head.split("::");
    if (halves.length > 2) return null;
    const groups = halves.map(h => h === "" ? [] : h.split(":"));
    if (groups.flat().some(g => !/^[0-9a-fA-F]{1,4}$/.test(g))) return null;
    const count = groups.flat().length;
    if (halves.length === 1 ? count !== 8 : count > 7) return null;
    const all = halves.length === 1 ? groups[0] : [...groups[0], ...Array(8 - count).fill("0"), ...groups[1]];
    return {v: all.reduce((v, g) => v << 16n | BigInt("0x" + g), 0n), bits: 128};
  }

  function formatAddr(a) {
    if (a.bits === 32) return [24n, 16n, 8n, 0n].map(s => a.v >> s & 255n).join(".");
    const groups = [];
    for (let s = 112n; s >= 0n; s -= 16n) groups.push((a.v >> s & 0xffffn).toString(16));
    if (a.v >> 32n === 0xffffn) return "::ffff:" + formatAddr({v: a.v & 0xffffffffn, bits: 32});
    let at = -1, length = 1; // the longest run of zeros, of two at least
    for (let i = 0; i < 8; i++) {
      let n = 0;
      while (i + n < 8 && groups[i + n] === "0") n++;
      if (n > length) [at, length] = [i, n];
    }
    if (at < 0) return groups.join(":");
    return groups.slice(0, at).join(":") + "::" + groups.slice(at + length).join(":");
  }

  const prefixes = new Map();
  function parsePrefix(text) {
    let p = prefixes.get(text);
    if (!p) {
      const [addr, length] = text.split("/");
      p = parseAddr(addr);
      p.shift = BigInt(p.bits - Number(length));
      prefixes.set(text, p);
    }
    return p;
  }
  function contains(prefix, a) {
    const p = parsePrefix(prefix);
    return p.bits === a.bits && p.v >> p.shift === a.v >> p.shift;
  }
  const isLoopback = a => a.bits === 32 ? a.v >> 24n === 127n : a.v === 1n;
  const familyOf = a => a.bits === 32 ? "IPv4" : a.v >> 32n === 0xffffn ? "" : "IPv6";

  // ---- texts

  const matchText = m => (m.addr === undefined ? "node:" + m.port : hostPort(m.addr, m.port)) + "/" + m.protocol;
  const hostPort = (addr, port) => (addr.includes(":") ? "[" + addr + "]" : addr) + ":" + port;
  const nameText = n => n.namespace + "/" + n.name;
  const portText = p => nameText(p.service) + (p.port ? ":" + p.port : "");
  function originText(o) {
    if (!o || !o.object) return "";
    return o.object + (o.field ? ": " + o.field : "") + (o.reason ? " (" + o.reason + ")" : "");
  }
  const key = (addr, protocol, port) => (addr || "") + " " + protocol + " " + port;

  // packet reads a source, IP or IP@INTERFACE, and a destination, IP:PORT or IP:PORT/PROTOCOL.
  function packet(from, to) {
    const cut = from.indexOf("@");
    const src = parseAddr(cut < 0 ? from : from.slice(0, cut));
    if (!src) throw new Error("source " + JSON.stringify(from) + ": must be IP or IP@INTERFACE");
    const m = /^(?:\[([^\]]+)\]|([0-9.]+)):(\d{1,5})(?:\/(tcp|udp|sctp))?$/i.exec(to);
    const dst = m && parseAddr(m[1] || m[2]), port = m ? Number(m[3]) : 0;
    if (!dst || port < 1 || port > 65535 || dst.bits !== (m[1] ? 128 : 32)) {
      throw new Error("destination " + JSON.stringify(to) + ": must be IP:PORT or IP:PORT/PROTO, with PROTO tcp, udp or sctp");
    }
    if (src.bits !== dst.bits) throw new Error("source " + formatAddr(src) + " and destination " + formatAddr(dst) + " are of different families");
    return {src, dst, protocol: (m[4] || "tcp").toLowerCase(), port, in: cut < 0 ? "" : from.slice(cut + 1)};
  }

  // ---- the meaning

  // index makes of a Program what trace asks. caps are the capabilities of its mode.
  function index(program, caps) {
    const x = {program, caps: new Set(caps), at: new Map(), vips: new Map(), checks: new Set(), carried: new Set(), locals: new Set(), own: new Set(program.node.addrs || [])};
    for (const service of program.services || []) {
      if (service.health) x.checks.add(service.health.port);
      if (x.caps.has("HairpinByAddress")) {
        for (const pool of service.pools || []) for (const b of pool.backends || []) if (b.local) x.locals.add(b.addrPort + "/" + pool.port.protocol);
      }
      for (const frontend of service.frontends || []) {
        const m = frontend.match, k = key(m.addr, m.protocol, m.port);
        if (!x.at.has(k)) x.at.set(k, {service, frontend});
        const minds = x.caps.has("RejectUndefinedVIPPorts") || frontend.kind === "ClusterIP";
        if (m.addr !== undefined && x.caps.has("CarriesVIPs")) x.carried.add(m.addr);
        if (m.addr !== undefined && minds && !x.vips.has(m.addr)) x.vips.set(m.addr, {service, frontend});
      }
    }
    return x;
  }

  const hasNodePorts = (ports, a, local) => {
    if (isLoopback(a) && !ports.loopback) return false;
    if (ports.all) return local;
    return (ports.prefixes || []).some(p => contains(p.prefix, a) && (local || !p.assigned));
  };
  const routesAll = routes => routes.length > 0 && routes[routes.length - 1].from === "any";

  class Tracer {
    constructor(x, pkt) {
      Object.assign(this, {x, pkt, node: x.program.node, steps: [], refused: [], src: formatAddr(pkt.src), dst: formatAddr(pkt.dst)});
    }
    step(origin, text) { this.steps.push({text, origin: originText(origin)}); }
    can(cap) { return this.x.caps.has(cap); }
    own(a, text) { return isLoopback(a) || this.x.own.has(text); }
    get fromNode() { return this.pkt.in === ""; }
    find(addr) { return this.x.at.get(key(addr, this.pkt.protocol, this.pkt.port)); }

    trace() {
      const {pkt, node} = this;
      if (familyOf(pkt.dst) !== this.x.program.family) {
        this.step(null, this.dst + " is not an " + this.x.program.family + " address");
        return {fate: "not ours"};
      }
      const local = this.own(pkt.dst, this.dst);
      const vip = this.find(this.dst), port = this.find();
      const answering = hasNodePorts(node.nodePorts, pkt.dst, local);
      const answers = port && answering;
      if (vip) {
        const f = vip.frontend;
        this.step(f.origin, matchText(f.match) + " is the " + f.kind + " of " + portText(f.port));
        if (!answers) return this.frontend(vip);
        if ((f.routes || []).length > 0 || !this.can("NodePortBehindEmpty")) return this.frontend(vip, port.frontend);
        if (this.guards(f) && !this.admitted(f)) return {fate: "dropped"};
        this.step(f.fallbackOrigin, "no route: mode " + node.mode + " continues with node ports");
      }
      if (answers) {
        const f = port.frontend;
        this.step(f.origin, matchText(f.match) + " on the node's address " + this.dst + " is the NodePort of " + portText(f.port));
        return this.frontend(port, vip && vip.frontend);
      }
      if (port) {
        const f = port.frontend;
        this.step(node.nodePorts.origin, pkt.port + "/" + pkt.protocol + " is the NodePort of " + portText(f.port) + ", but node ports do not answer on " + this.dst);
        if (local && this.can("EmptyNodePortAnyAddr") && !routesAll(f.routes || [])) return this.noRoute(f);
      }
      return this.unclaimed(local);
    }

    frontend({service, frontend: f}, other) {
      if (this.guards(f) && !this.admitted(f)) return {fate: "dropped"};
      for (const r of f.routes || []) {
        if (this.holds(r.from)) return this.accept(f, service.pools[r.pool], r);
      }
      return this.noRoute(this.refusing(f, other));
    }

    refusing(f, other) {
      if (!other || routesAll(other.routes || [])) return f;
      const [port, vip] = f.match.addr === undefined ? [f, other] : [other, f];
      let first = vip, why = "address";
      if (this.can("NodePortRefusesFirst") && !this.fromNode) [first, why] = [port, "node port"];
      if (first !== f) {
        this.step(first.origin, "no route, and none at " + matchText(first.match) + ": in mode " + this.node.mode + " the " + why + " decides how it is refused");
      }
      return first;
    }

    guards(f) {
      if (!(f.sourceRanges || []).length) return false;
      if ((f.routes || []).length > 0) return true;
      return this.can(this.fromNode ? "GuardEmptyFromNode" : "GuardEmpty");
    }

    admitted(f) {
      let src = this.pkt.within || this.pkt.src;
      if (this.can("CarriesVIPs") && this.fromNode && this.src === this.dst) {
        src = this.node.ip ? parseAddr(this.node.ip) : null;
        this.step({object: "config", field: "mode", reason: "the node has the address, so it is the source"}, "source " + this.src + " is treated as the node's address");
      }
      for (const r of f.sourceRanges) {
        if (src && contains(r.prefix, src)) {
          this.step(r.origin, "source " + formatAddr(src) + " is admitted by " + r.prefix);
          return true;
        }
      }
      const ranges = f.sourceRanges.map(r => r.prefix).join(", ");
      this.step({object: f.sourceRanges[0].origin.object, field: "spec.loadBalancerSourceRanges"},
        "source " + (src ? formatAddr(src) : "invalid IP") + " is outside the ranges " + ranges + ": dropped");
      return false;
    }

    isPod() {
      const d = this.node.detector;
      switch (d.mode) {
        case "cidr": return contains(d.prefix, this.pkt.within || this.pkt.src);
        case "interface": return this.pkt.in === d.interface;
        case "prefix": return this.pkt.in !== "" && this.pkt.in.startsWith(d.interface || "");
      }
      return false;
    }

    holds(scope) {
      if (scope === "pods") {
        const pod = this.isPod();
        const source = this.fromNode ? this.src : this.src + " on " + this.pkt.in;
        this.step(this.node.detector.origin, "source " + source + (pod ? " is treated" : " is not treated") + " as a pod");
        return pod;
      }
      if (scope === "node") {
        const host = this.own(this.pkt.src, this.src);
        if (host) this.step({object: "Node " + this.node.name}, "source " + this.src + " is the node itself");
        return host;
      }
      return true;
    }

    accept(f, pool, r) {
      const ownVIP = this.node.detector.mode === "none" && this.can("MasqueradesOwnVIP") && f.kind === "ClusterIP" && this.fromNode && this.src === this.dst;
      const masquerade = Boolean(r.snat) || ownVIP;
      if (r.snat) this.step(r.origin, "route from " + r.from + ": masqueraded");
      else if (masquerade) {
        this.step({object: "config", field: "mode", reason: "the node has the address, so it is the source"},
          "route from " + r.from + ": masqueraded, since the source is the ClusterIP itself");
      } else this.step(r.origin, "route from " + r.from + ": the source address is kept");
      const of = portText(pool.port) + " " + pool.policy;
      if (pool.backends.length === 1) this.step(pool.origin, "the only backend of " + of);
      else this.step(pool.origin, "one of " + pool.backends.length + " backends of " + of + (f.maglev && this.can("StableBackends") ? ", by the client's address and port" : ", at random"));
      if (pool.affinity) this.step(pool.affinity.origin, "a client keeps its backend until " + pool.affinity.timeout + " pass without a new connection");
      const found = new Map();
      for (const b of pool.backends) {
        const [addr, port] = splitHostPort(b.addrPort), a = parseAddr(addr);
        const hairpin = Boolean(b.local || this.can("HairpinRemote") || this.x.locals.has(b.addrPort + "/" + f.match.protocol)) && addr === this.src;
        const here = this.can("KeepsClient") && !this.fromNode && (this.own(a, addr) || this.x.carried.has(addr));
        if (this.x.carried.has(addr) && !this.own(a, addr)) this.step(b.origin, b.addrPort + ": the node itself has this Service address: the packet ends there");
        else if (here && masquerade) this.step(b.origin, b.addrPort + ": on the node itself, where nothing is masqueraded");
        else if (hairpin && !masquerade) this.step(b.origin, b.addrPort + ": the source itself, so masqueraded (hairpin)");
        else this.step(b.origin, b.addrPort);
        const fate = this.behind(a, addr, Number(port), masquerade || hairpin && Boolean(pool.affinity));
        if (fate !== "accepted") { this.refused.push({origin: b.origin, address: b.addrPort, fate}); continue; }
        const snat = (masquerade || hairpin) && !here;
        found.set(b.addrPort + snat, {address: b.addrPort, masquerade: snat, a, port: Number(port)});
      }
      const destinations = [...found.values()].sort((p, q) =>
        p.a.v < q.a.v ? -1 : p.a.v > q.a.v ? 1 : p.port - q.port || Number(q.masquerade) - Number(p.masquerade));
      const fates = ["dropped", "rejected", "accepted"].filter(f => f === "accepted" ? destinations.length > 0 : this.refused.some(r => r.fate === f));
      return {fate: fates[0], others: fates.slice(1), destinations: destinations.map(({address, masquerade}) => ({address, masquerade})),
        affinity: pool.affinity && destinations.length > 0 ? pool.affinity.timeout : ""};
    }

    // behind is what becomes of a packet that was translated to a backend.
    behind(a, addr, port, marked) {
      if (!this.can("FiltersTranslated")) return "accepted";
      const {pkt} = this, local = this.own(a, addr);
      const there = this.x.at.get(key(addr, pkt.protocol, port)), f = there && there.frontend;
      if (f && this.can("GuardsTranslated") && (f.sourceRanges || []).length && (f.routes || []).some(r => r.from !== "pods" || this.node.detector.mode !== "none")) {
        this.step({object: f.sourceRanges[0].origin.object, field: "spec.loadBalancerSourceRanges"},
          matchText(f.match) + " is the " + f.kind + " of " + portText(f.port) + ", whose source ranges admit no translated packet: dropped");
        return "dropped";
      }
      if (marked && !local && !this.fromNode && this.can("ForwardsMarked")) return "accepted";
      const u = new Tracer(this.x, {...pkt, dst: a, port});
      u.translated = true;
      const fate = u.refusal(f, local);
      this.steps.push(...u.steps);
      return fate === "not ours" ? "accepted" : fate;
    }

    refusal(there, local) {
      let f = there && !routesAll(there.routes || []) ? there : null;
      const port = local && this.find(), np = port && port.frontend;
      if (np && !routesAll(np.routes || []) && (this.can("EmptyNodePortAnyAddr") || hasNodePorts(this.node.nodePorts, this.pkt.dst, true))) {
        f = f ? this.refusing(f, np) : np;
      }
      if (f) {
        this.step(f.origin, matchText(f.match) + ", the new destination, is the " + f.kind + " of " + portText(f.port));
        const {fate} = this.noRoute(f);
        if (fate !== "not ours") return fate;
      }
      return this.unallocated(local);
    }

    noRoute(f) {
      if (!this.can("Refuses")) {
        this.step(f.fallbackOrigin, "no route: mode " + this.node.mode + " ignores the packet");
        return {fate: "not ours"};
      }
      const vip = f.kind === "ExternalIP" || f.kind === "LoadBalancer";
      if (vip && this.fromNode && !this.can("EmptyFromNode") && !this.own(this.pkt.dst, this.dst)) {
        this.step(f.fallbackOrigin, "no route: mode " + this.node.mode + " ignores packets from the node itself to external addresses");
        return {fate: "not ours"};
      }
      this.step(f.fallbackOrigin, "no route: " + f.fallback);
      return {fate: f.fallback === "drop" ? "dropped" : "rejected"};
    }

    unclaimed(local) {
      const {pkt} = this, owned = this.x.vips.has(this.dst);
      if (owned && this.can("CarriesVIPs") && pkt.protocol === "tcp" && this.x.checks.has(pkt.port)) {
        this.step({object: "config", field: "mode", reason: "the node has the address, so it answers there"}, "port " + pkt.port + " is a health check port: not proxied");
        return {fate: "not ours"};
      }
      const fate = this.unallocated(local);
      if (!owned && fate === "not ours") this.step(null, "no Service has " + matchText({addr: this.dst, protocol: pkt.protocol, port: pkt.port}));
      return {fate};
    }

    unallocated(local) {
      const owner = this.x.vips.get(this.dst);
      if (owner) {
        const rejects = this.can("RejectUndefinedPorts") && !local;
        const is = this.dst + " is the " + owner.frontend.kind + " of " + nameText(owner.service.name);
        const ports = owner.service.frontends.filter(f => f.match.addr === this.dst).map(f => f.match.port + "/" + f.match.protocol);
        if (!this.translated) {
          this.step({object: owner.service.origin.object, field: "spec.ports"}, is + ", which has only " + ports.join(", ") + ": " + (rejects ? "rejected" : "not proxied"));
        } else if (rejects) {
          this.step(owner.service.origin, is + ", which is not translated a second time: rejected");
        }
        return rejects ? "rejected" : "not ours";
      }
      if (this.can("DropUnallocated") && !local) {
        for (const c of this.node.serviceCIDRs || []) {
          if (contains(c.prefix, this.pkt.dst)) {
            this.step(c.origin, this.dst + " is in the service network " + c.prefix + " and no Service with rules has it: dropped");
            return "dropped";
          }
        }
      }
      return "not ours";
    }

    // hindrances are all that keeps a packet from passing.
    hindrances() {
      const {pkt, node} = this, found = [];
      const add = (origin, text) => found.push({text, origin: originText(origin)});
      const ofFrontend = f => {
        if ((f.sourceRanges || []).length && !this.admitted(f)) {
          add({object: f.sourceRanges[0].origin.object, field: "spec.loadBalancerSourceRanges"},
            "the source ranges must contain " + this.src + "; they are " + f.sourceRanges.map(r => r.prefix).join(", "));
        }
        if ((f.routes || []).some(r => this.holds(r.from))) return;
        let where = "";
        if (f.policy === "Local") where = " on node " + node.name + (f.fallback === "drop" ? ", or the traffic policy Cluster" : "");
        add(f.fallbackOrigin, portText(f.port) + " must have a ready endpoint" + where);
      };
      const ofNodePort = f => {
        if (!hasNodePorts(node.nodePorts, pkt.dst, true)) add(node.nodePorts.origin, "node ports must answer on " + this.dst + ", for the NodePort of " + portText(f.port));
        ofFrontend(f);
      };
      const near = () => {
        const ports = new Map(), of = [];
        for (const s of this.x.program.services || []) {
          for (const f of s.frontends || []) {
            if (f.match.addr !== this.dst) continue;
            const name = nameText(s.name);
            if (!ports.has(name)) { ports.set(name, []); of.push(f); }
            ports.get(name).push(f.match.port + "/" + f.match.protocol);
          }
        }
        for (const f of of) {
          const name = nameText(f.port.service);
          const has = ports.get(name).filter((p, i, all) => i === 0 || p !== all[i - 1]).join(", ");
          add({object: f.origin.object, field: "spec.ports"}, name + " must have port " + pkt.port + "/" + pkt.protocol + " at its " + f.kind + "; it has " + has);
        }
        if (of.length > 0) return true;
        for (const c of node.serviceCIDRs || []) {
          if (contains(c.prefix, pkt.dst)) {
            add(c.origin, "a Service with rules must have " + this.dst + ", an address of the service network " + c.prefix);
            return true;
          }
        }
        return false;
      };
      const vip = this.find(this.dst), port = this.find();
      if (vip) ofFrontend(vip.frontend);
      else if (port && this.own(pkt.dst, this.dst)) ofNodePort(port.frontend);
      else if (!near() && port) {
        add({object: "Node " + node.name, field: "status.addresses"}, this.dst + " must be an address of node " + node.name + ", for the NodePort of " + portText(port.frontend.port));
        ofNodePort(port.frontend);
      }
      return found;
    }
  }

  function splitHostPort(text) {
    const at = text.lastIndexOf(":");
    return [text.slice(0, at).replace(/^\[|\]$/g, ""), text.slice(at + 1)];
  }

  // trace returns the fate of a packet under what index made of a Program: accepted, rejected, dropped or
  // not ours; others that chance may bring; the destinations and the affinity of one that is accepted; the steps that lead there; and what
  // would have to be otherwise for one that is not.
  function trace(x, pkt) {
    const t = new Tracer(x, pkt);
    const out = {destinations: [], affinity: "", others: [], ...t.trace(), steps: t.steps, hindrances: []};
    if (out.fate !== "accepted" && familyOf(pkt.dst) === x.program.family) {
      out.hindrances = t.refused.map(r => ({text: "endpoint " + r.address + " must be at an address where packets are not " + r.fate, origin: originText(r.origin)}));
      if (out.hindrances.length === 0) out.hindrances = new Tracer(x, pkt).hindrances();
    }
    return out;
  }

  return {parseAddr, formatAddr, familyOf, packet, index, trace, matchText, nameText, portText, originText, hostPort, contains, splitHostPort};
})();
