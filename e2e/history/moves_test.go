package history

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/proxyc/proxyc/e2e/kube"
)

// A move is one step of a history.
type move struct {
	name string
	play func(h *history) string // returns a description of its choice
}

// moveCounts is the number of each move in a deck. All moves of a deck are played before the next
// deck.
var moveCounts = []struct {
	move
	times int
}{
	{move{"API: change a Service", (*history).changeService}, 40},
	{move{"API: change the Node", (*history).changeNode}, 2},
	{move{"API: change a ServiceCIDR", (*history).changeServiceCIDR}, 2},
	{move{"addresses of the node", (*history).changeAddress}, 3},
	{move{"edit rules", (*history).edit}, 20},
	{move{"edit rules at once", (*history).editTwice}, 3},
	{move{"kill", (*history).killed}, 3},
	{move{"terminate", (*history).terminated}, 2},
	{move{"start", (*history).startAgain}, 3},
	{move{"hang up", (*history).hangUp}, 1},
	{move{"configure", (*history).newConfiguration}, 2},
	{move{"begin a fault", (*history).beginFault}, 10},
	{move{"end a fault", (*history).endRandomFault}, 8},
}

func (h *history) newDeck() (deck []move) {
	for _, m := range moveCounts {
		deck = append(deck, slices.Repeat([]move{m.move}, m.times)...)
	}
	h.r.Shuffle(len(deck), func(i, j int) { deck[i], deck[j] = deck[j], deck[i] })
	return deck
}

func (h *history) play(m move) {
	h.t.Helper()
	what := m.play(h)
	h.logf("%s: %s", m.name, what)
}

func (h *history) changeService() string {
	defer h.change()
	return h.cluster.step()
}

// change records the time of a change.
func (h *history) change() { h.changed = time.Now() }

func (h *history) changeNode() string {
	defer h.change()
	n, what := node(pick(h, "a", "b"), pick(h, "192.0.2.11", "192.0.2.77")), "changed"
	if h.r.IntN(4) == 0 {
		what = "deleted and created"
		h.cluster.delete(n)
	}
	h.cluster.apply(n)
	return what
}

func (h *history) changeServiceCIDR() string {
	defer h.change()
	more := serviceCIDR("more", "10.112.0.0/16")
	if h.r.IntN(2) == 0 {
		h.cluster.delete(more)
		return "deleted"
	}
	h.cluster.apply(more)
	return "applied"
}

func (h *history) changeAddress() string {
	return h.run("ip address " + pick(h, "add", "del") + " " + pick(h, "192.0.2.77/32", "192.0.2.78/32", "fd00:77::1/128") + " dev lo")
}

// run runs a command of another program on the node.
func (h *history) run(script string) string {
	ctx, cancel := context.WithTimeout(h.t.Context(), 10*time.Second)
	defer cancel()
	cmd := h.ns.Command(ctx, "sh", "-c", script)
	cmd.Env = append(cmd.Environ(), "XTABLES_LOCKFILE="+filepath.Join(h.dir, "run", "xtables.lock"))
	_, err := h.ns.Run(cmd)
	h.changed = time.Now()
	if err != nil {
		return script + ": failed"
	}
	return script
}

func (h *history) killed() string     { return h.end(syscall.SIGKILL) }
func (h *history) terminated() string { return h.end(syscall.SIGTERM) }

// end ends the daemon, and in half of the cases starts it again.
func (h *history) end(by syscall.Signal) string {
	if h.down {
		return "none runs"
	}
	for i, f := range slices.Backward(h.faults) {
		if f.process {
			h.endFault(i)
		}
	}
	h.stop(by)
	if h.r.IntN(2) == 0 {
		return "it stays away"
	}
	h.launch()
	return "and started"
}

func (h *history) startAgain() string {
	if h.down {
		h.launch()
	}
	return ""
}

func (h *history) hangUp() string {
	if !h.down {
		h.proxy.Signal(syscall.SIGHUP)
	}
	return ""
}

func (h *history) newConfiguration() string {
	h.configure()
	h.changed = time.Now()
	return ""
}

// pick returns one of some values.
func pick[T any](h *history, of ...T) T { return of[h.r.IntN(len(of))] }

// edit changes the rules as another program might.
func (h *history) edit() string { return h.run(h.randomEdit()) }

func (h *history) editTwice() string {
	one, other := h.randomEdit(), h.randomEdit()
	return h.run("{ " + one + "\n} &\n{ " + other + "\n} &\nwait")
}

// randomEdit returns a script that changes rules.
func (h *history) randomEdit() string {
	variant, iptables := strings.CutPrefix(h.plane, "iptables-")
	switch {
	case variant == "legacy" || iptables && h.r.IntN(2) == 0:
		return h.iptablesEdit(variant)
	case h.r.IntN(12) == 0:
		return "nft flush ruleset"
	}
	return h.nftEdit(iptables)
}

// iptablesEdit returns an edit by the iptables tools.
func (h *history) iptablesEdit(variant string) string {
	tool := pick(h, "iptables-", "iptables-", "ip6tables-") + variant
	table := pick(h, "nat", "nat", "filter")
	restore := func(lines string) string {
		return fmt.Sprintf("%s-restore -w 1 --noflush <<'END'\n*%s\n%s\nCOMMIT\nEND\n", tool, table, lines)
	}
	out, err := h.ns.Run(h.ns.Command(h.t.Context(), tool+"-save", "-t", table))
	if err != nil {
		h.t.Fatal(err)
	}
	var chains, rules []string
	for line := range strings.Lines(string(out)) {
		line = strings.TrimSpace(line)
		if name, _, _ := strings.Cut(strings.TrimPrefix(line, ":"), " "); strings.HasPrefix(line, ":KUBE-") {
			chains = append(chains, name)
		}
		if strings.HasPrefix(line, "-A ") {
			rules = append(rules, line)
		}
	}
	if len(chains) == 0 || len(rules) == 0 {
		return tool + "-save | " + tool + "-restore -w 1"
	}
	chain, rule := pick(h, chains...), strings.TrimPrefix(pick(h, rules...), "-A ")
	switch h.r.IntN(9) {
	case 0:
		return fmt.Sprintf("%s -w 1 -t %s -F", tool, table)
	case 1:
		return fmt.Sprintf("%s -w 1 -t %s -D %s 1", tool, table, pick(h, "PREROUTING", "OUTPUT", "INPUT"))
	case 2, 3:
		return restore("-D " + rule)
	case 4:
		return restore(":" + chain + " - [0:0]")
	case 5:
		return restore("-I " + chain + " -j RETURN")
	case 6: // the same number of rules, with the same sizes
		return fmt.Sprintf("%s-save -t %s | sed s/%s/%s/ | %[1]s-restore -w 1", tool, table, "10.244.1.10:8080", "10.244.1.77:8080")
	case 7: // a program writes rules that it read before over later changes
		return fmt.Sprintf("saved=$(%s-save -t %s); sleep 0.%d; echo \"$saved\" | %[1]s-restore -w 1", tool, table, h.r.IntN(9))
	default: // equal rules replace the rules
		return fmt.Sprintf("%s-save -t %s | %[1]s-restore -w 1", tool, table)
	}
}

// nftEdit returns an edit, by nft, of the tables that the daemon writes.
func (h *history) nftEdit(iptables bool) string {
	family, table := pick(h, "ip", "ip", "ip6"), "proxyc"
	if iptables {
		table = pick(h, "nat", "filter")
	}
	own := family + " " + table
	all, err := h.ns.Run(h.ns.Command(h.t.Context(), "nft", "-j", "list table "+own))
	if err != nil {
		return "nft add table " + own
	}
	var listing struct {
		Nftables []struct {
			Map, Set *struct {
				Name string
				Elem []any
			}
			Chain *struct{ Name string }
			Rule  *struct {
				Chain  string
				Handle int
			}
		}
	}
	if err := json.Unmarshal(all, &listing); err != nil {
		h.t.Fatal(err)
	}
	type elements struct {
		name string
		elem []any
	}
	var sets []elements
	var chains, rules []string
	for _, o := range listing.Nftables {
		for _, s := range []*struct {
			Name string
			Elem []any
		}{o.Map, o.Set} {
			if s != nil && len(s.Elem) > 0 {
				sets = append(sets, elements{s.Name, s.Elem})
			}
		}
		if o.Chain != nil {
			chains = append(chains, o.Chain.Name)
		}
		if o.Rule != nil {
			rules = append(rules, fmt.Sprintf("%s %s handle %d", own, o.Rule.Chain, o.Rule.Handle))
		}
	}
	choice := h.r.IntN(14)
	switch {
	case choice == 0:
		return "nft delete table " + own
	case choice == 1:
		return "nft flush table " + own
	case choice == 2 && len(chains) > 0:
		return "nft flush chain " + own + " " + pick(h, chains...)
	case choice == 3 && len(chains) > 0:
		return "nft insert rule " + own + " " + pick(h, chains...) + " counter return"
	case choice == 4 && len(chains) > 0: // the daemon refuses a table that has only foreign chains
		return "nft add chain " + own + " foreign"
	case choice == 5 && len(sets) > 0:
		return "nft flush set " + own + " " + pick(h, sets...).name
	case choice == 6: // no effect except notifications
		return "nft 'add table ip other; add set ip other s { type ipv4_addr; flags interval; elements = { 10.0.0.0/8 }; }; delete table ip other'"
	case choice == 7: // many notifications
		return "nft add table ip other; nft add set ip other s '{ type inet_service; }'; for i in 1 2 3; do seq -s, 1 9999 | sed 's/^/add element ip other s { /; s/$/ }; flush set ip other s/' | nft -f -; done; nft delete table ip other"
	case choice < 11 && len(sets) > 0:
		s := pick(h, sets...)
		one, other := pick(h, s.elem...), pick(h, s.elem...)
		pair, mapped := one.([]any)
		edit := []any{element("delete", family, table, s.name, one)}
		if mapped && choice > 8 { // the element gets another target
			if value, ok := other.([]any); ok {
				edit = append(edit, element("add", family, table, s.name, []any{pair[0], value[1]}))
			}
		}
		text, err := json.Marshal(kube.Object{"nftables": edit})
		if err != nil {
			h.t.Fatal(err)
		}
		return fmt.Sprintf("nft -j -f - <<'END'\n%s\nEND\n", text)
	case len(rules) > 0:
		return "nft delete rule " + pick(h, rules...)
	}
	return "nft flush table " + own
}

// element returns a command that deletes an element of a listing, or adds it.
func element(verb, family, table, set string, elem any) kube.Object {
	if pair, ok := elem.([]any); ok && verb == "delete" {
		elem = pair[0]
	}
	return kube.Object{verb: kube.Object{"element": kube.Object{"family": family, "table": table, "name": set, "elem": []any{elem}}}}
}

// beginFault begins a fault that lasts until it is ended.
func (h *history) beginFault() string {
	if len(h.faults) >= 2 || h.down {
		return "not now"
	}
	choices := []func() fault{h.brokenSocket, h.brokenSocket, h.stopped, h.unreachable, h.unreachable}
	if _, iptables := strings.CutPrefix(h.plane, "iptables-"); iptables {
		choices = append(choices, h.brokenTools, h.brokenTools, h.brokenTools)
	}
	if h.plane == "iptables-legacy" {
		choices = append(choices, h.locked)
	}
	f := pick(h, choices...)()
	h.faults = append(h.faults, f)
	return f.name
}

func (h *history) endRandomFault() string {
	if len(h.faults) == 0 {
		return "none"
	}
	return h.endFault(h.r.IntN(len(h.faults)))
}

func (h *history) endFault(i int) string {
	f := h.faults[i]
	h.faults = slices.Delete(h.faults, i, i+1)
	f.end()
	h.changed = time.Now()
	h.logf("ended: %s", f.name)
	return f.name
}

// brokenSocket makes system calls on the daemon's netlink sockets fail. Its other sockets use
// other calls.
func (h *history) brokenSocket() fault {
	calls := pick(h, "sendmsg,sendto", "recvmsg,recvfrom", "recvmsg,recvfrom", "sendmsg,sendto,recvmsg,recvfrom", "socket")
	inject := fmt.Sprintf("inject=%s:error=%s:when=%s", calls, pick(h, "ENOBUFS", "ENOBUFS", "ENOMEM", "EPERM", "EIO"), pick(h, "1", "3", "1+2", "2+5", "1+"))
	cmd := h.ns.Command(context.Background(), "strace", "-f", "-qq", "-o", "/dev/null", "-e", "trace="+calls, "-e", inject, "-p", fmt.Sprint(h.proxy.Pid()))
	wait, err := h.ns.Start(cmd)
	if err != nil {
		h.t.Fatal(err)
	}
	return fault{name: "strace " + inject, process: true, end: func() {
		cmd.Process.Signal(syscall.SIGTERM)
		end := time.AfterFunc(5*time.Second, func() { cmd.Process.Kill() }) // strace may wait forever to detach from a stopped process
		defer end.Stop()
		wait()
	}}
}

// stopped stops the process.
func (h *history) stopped() fault {
	p := h.proxy
	p.Signal(syscall.SIGSTOP)
	return fault{name: "stopped", process: true, end: func() { p.Signal(syscall.SIGCONT) }}
}

// unreachable makes the API server unreachable.
func (h *history) unreachable() fault {
	names := []string{breaks: "closes connections", silent: "is silent", failing: "answers 500", unauthorize: "answers 401",
		throttling: "answers 429", garbage: "answers with a page", cutting: "ends watches after each event"}
	how := apiFault(h.r.IntN(len(names)))
	if how == healthy {
		names[healthy] = "forgets"
		h.cluster.forget()
	}
	h.cluster.set(how)
	h.cut = true
	return fault{name: "the API server " + names[how], unknown: true, end: func() { h.cluster.set(healthy) }}
}

// brokenTools makes the iptables tools fail.
func (h *history) brokenTools() fault {
	f := fault{}
	script := ""
	switch h.r.IntN(8) {
	case 0:
		f.name, script = "tools fail", `echo "no luck" >&2; exit 1`
	case 1:
		f.name, script = "tools fail afterwards", `"$real" "$@"; exit 1`
	case 2:
		f.name, script = "tools are killed", "kill -9 $$"
	case 3:
		f.name, script = "tools are slow", "sleep 1"
	case 4:
		f.name, script = "tools find the lock held", "exit 4"
	default:
		edit := h.randomEdit()
		once := filepath.Join(h.dir, "once")
		h.write(once, "")
		f.name = "an edit during a tool: " + edit
		f.unknown = true
		// The legacy tools' lock is shared by the whole machine.
		concurrent := fmt.Sprintf("( XTABLES_LOCKFILE=/run/xtables.lock\nPATH=${PATH#*:}\nexport XTABLES_LOCKFILE\nexec </dev/null >/dev/null 2>&1\n%s\n)", edit)
		script = fmt.Sprintf("if rm %s 2>/dev/null; then\n%s\nfi", once, pick(h, concurrent, `"$real" "$@"; code=$?`+"\n"+concurrent+"\nexit $code"))
	}
	h.setTools(script)
	f.end = func() { h.setTools("") }
	return f
}

// locked holds the lock of the legacy tools.
func (h *history) locked() fault { return fault{name: "the lock is held", end: h.lockTools()} }
