//go:build linux

package page

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/cdproto/accessibility"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

const repository = "../.."

// proxyc builds the program once, and returns its path.
var proxyc = func() func(*testing.T) string {
	built := ""
	return func(t *testing.T) string {
		t.Helper()
		if built == "" {
			dir, err := os.MkdirTemp("", "proxyc-page")
			if err != nil {
				t.Fatal(err)
			}
			name := filepath.Join(dir, "proxyc")
			cmd := exec.Command("go", "run", "-exec", "cp", "./cmd/proxyc", name)
			cmd.Dir = repository
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			built = name
		}
		return built
	}
}()

func TestMain(m *testing.M) { os.Exit(m.Run()) }

// run runs proxyc, and returns its output.
func run(t *testing.T, dir string, args ...string) string {
	t.Helper()
	cmd := exec.Command(proxyc(t), args...)
	cmd.Dir = dir
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("proxyc %s: %v\n%s", strings.Join(args, " "), err, &stderr)
	}
	return string(out)
}

// tab is a page in a browser.
type tab struct {
	*testing.T
	ctx    context.Context
	asked  []string // requests to the network
	thrown []string // script errors, and violations of the content security policy
}

// open opens a page, and waits until it is ready. Without a browser it skips the test, or fails
// it if PROXYC_REQUIRE contains "chromium" or "all".
func open(t *testing.T, file string) *tab {
	t.Helper()
	if _, err := exec.LookPath("chromium"); err != nil {
		if required := strings.Split(os.Getenv("PROXYC_REQUIRE"), ","); slices.Contains(required, "chromium") || slices.Contains(required, "all") {
			t.Fatalf("PROXYC_REQUIRE: %v", err)
		}
		t.Skipf("needs chromium, see make setup: %v", err)
	}
	dir := t.TempDir()
	options := append(slices.Clone(chromedp.DefaultExecAllocatorOptions[:]), chromedp.NoSandbox, chromedp.DisableGPU, chromedp.Flag("disable-quic", true),
		chromedp.Flag("disable-component-update", true), chromedp.UserDataDir(dir), chromedp.WindowSize(1400, 1000), chromedp.WSURLReadTimeout(5*time.Minute),
		chromedp.ModifyCmdFunc(func(cmd *exec.Cmd) {
			// A browser is several processes. The kernel ends all of a PID namespace with the first one,
			// so that none still writes files.
			cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID, Pdeathsig: syscall.SIGKILL}
		}))
	ctx, stop := context.WithTimeout(t.Context(), 10*time.Minute)
	t.Cleanup(stop)
	ctx, stop = chromedp.NewExecAllocator(ctx, options...)
	t.Cleanup(stop)
	ctx, stop = chromedp.NewContext(ctx)
	t.Cleanup(stop)
	b := &tab{T: t, ctx: ctx}
	chromedp.ListenTarget(ctx, func(event any) {
		switch e := event.(type) {
		case *network.EventRequestWillBeSent:
			b.asked = append(b.asked, e.Request.URL)
		case *runtime.EventExceptionThrown:
			b.thrown = append(b.thrown, e.ExceptionDetails.Error())
		case *runtime.EventConsoleAPICalled:
			if e.Type == runtime.APITypeError {
				b.thrown = append(b.thrown, fmt.Sprint(e.Args))
			}
		}
	})
	b.do(network.Enable(), emulation.SetFocusEmulationEnabled(true), chromedp.Navigate("file://"+file), chromedp.WaitReady("html[data-ready]", chromedp.ByQuery))
	if eval[string](b, `document.documentElement.dataset.ready`) != "true" {
		t.Fatal(b.text("#opening"))
	}
	t.Cleanup(func() {
		for _, url := range b.asked {
			if !strings.HasPrefix(url, "file://"+file) && !strings.HasPrefix(url, "blob:") {
				t.Errorf("the page requested %s", url)
			}
		}
		for _, what := range b.thrown {
			t.Errorf("the page's program: %s", what)
		}
	})
	return b
}

func (b *tab) do(actions ...chromedp.Action) {
	b.Helper()
	if err := chromedp.Run(b.ctx, actions...); err != nil {
		b.Fatal(err)
	}
}

// eval returns the value of an expression in the page.
func eval[T any](b *tab, expression string, args ...any) (v T) {
	b.Helper()
	b.do(chromedp.Evaluate(fmt.Sprintf(expression, args...), &v))
	return v
}

// text returns the visible text at a selector.
func (b *tab) text(selector string) string {
	b.Helper()
	return eval[string](b, `document.querySelector(%q).innerText`, selector)
}

func (b *tab) has(selector string, wants ...string) {
	b.Helper()
	text := b.text(selector)
	for _, want := range wants {
		if !strings.Contains(text, want) {
			b.Errorf("%s: has no %q:\n%s", selector, want, text)
		}
	}
}

// to navigates to a part of the page.
func (b *tab) to(hash string) {
	b.Helper()
	b.do(chromedp.Evaluate(fmt.Sprintf(`new Promise(done => { if (location.hash === %q) return done(true);
		addEventListener("hashchange", () => done(true), {once: true}); location.hash = %q; })`, hash, hash), nil,
		func(p *runtime.EvaluateParams) *runtime.EvaluateParams { return p.WithAwaitPromise(true) }))
}

// review writes the report of the change in docs/review.md.
func review(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs(repository + "/testdata/review")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "report.html")
	run(t, dir, "report", "-c", "config.yaml", "-s", "new", "--against", "old", "--all-nodes", "-o", file)
	return file
}

func TestPage(t *testing.T) {
	b := open(t, review(t))
	b.has("#overview", "Mode nftables", "node node1", "6 changed", "shop/web")

	b.to("#findings")
	b.has("#findings", "PX413", "new", "new/services.yaml:22", "Effect and fix")
	b.to("#diff")
	b.has("#diff", "lost 5", "3 Services with the same change", "shop/cart", "served → dropped", "on node1")
	b.to("#reach")
	b.has("#reach", "LoadBalancer 203.0.113.30:443/tcp", "all but 198.51.100.0/24", "dropped")
	b.do(chromedp.SetValue("#reach-fate", "rejected"), chromedp.Evaluate(`document.getElementById("reach-fate").dispatchEvent(new Event("change"))`, nil))
	if text := b.text("#reach"); !strings.Contains(text, "shop/web") || strings.Contains(text, "shop/edge") {
		t.Errorf("rejected: %s", text)
	}

	b.to("#services/shop%2Fedge")
	b.has("#service", "shop/edge", "Who can reach it", "PX422", "Differences")
	drawn := eval[string](b, `document.querySelector("#service svg").textContent`)
	for _, want := range []string{"LoadBalancer 203.0.113.10:443/tcp", "Local", "this node: masqueraded", "https Cluster", "10.244.1.10:8443 here", "−\u00a010.244.3.10:8443"} {
		if !strings.Contains(drawn, want) {
			t.Errorf("the drawing has no %q: %s", want, drawn)
		}
	}
	b.to("#services/shop%2Fedge%2") // truncated, so that it names nothing
	b.to("#services/shop%2Fedge")
	// The view depends on the node.
	b.do(chromedp.SetValue("#node", "1"), chromedp.Evaluate(`document.getElementById("node").dispatchEvent(new Event("change"))`, nil),
		chromedp.Poll(`document.querySelector("#service figcaption")?.textContent.includes("node2")`, nil))
	b.has("#service", "dropped")
}

// TestOpens checks that effects are in order, and that changes that open access are red.
func TestOpens(t *testing.T) {
	file, dir := filepath.Join(t.TempDir(), "report.html"), repository+"/testdata/review"
	run(t, dir, "report", "-c", "config.yaml", "-s", "old", "--against", "new", "--all-nodes", "-o", file)
	b := open(t, file)
	b.to("#diff")
	got := eval[[]string](b, `[...document.querySelectorAll("#diff .entry")].map(e => e.className.replace("entry ", "") + "/" + e.querySelector(".tag").textContent)`)
	if want := []string{"opens/opens", "opens/opens", "opens/opens", "client-address/client-address", "other/other", "backends/backends", "backends/backends"}; !slices.Equal(got, want) {
		t.Errorf("entries have effects %v, want %v", got, want)
	}
	if !eval[bool](b, `[...document.querySelectorAll("#diff div.opens")].some(e => e.textContent === "dropped → served" && getComputedStyle(e).color === getComputedStyle(document.querySelector(".tag.opens")).color)`) {
		t.Error("a change that opens access is not red")
	}
}

// TestChangesWithoutService checks that a change that belongs to no Service is shown as a
// difference, and not as a Service.
func TestChangesWithoutService(t *testing.T) {
	dir := t.TempDir()
	run(t, dir, "demo", "--write", ".")
	network := "apiVersion: networking.k8s.io/v1\nkind: ServiceCIDR\nmetadata: {name: more}\nspec: {cidrs: [10.97.0.0/16]}\n"
	if err := os.WriteFile(filepath.Join(dir, "network.yaml"), []byte(network), 0o644); err != nil {
		t.Fatal(err)
	}
	run(t, dir, "report", "-c", "config.yaml", "-s", "cluster.yaml", "-s", "network.yaml", "--against", "cluster.yaml", "-o", "report.html")
	b := open(t, filepath.Join(dir, "report.html"))
	b.to("#diff")
	b.has("#diff", "no Service", "other addresses of 10.97.0.0/16")
	b.to("#services")
	b.do(chromedp.SetValue("#show", "changed"), chromedp.Evaluate(`document.getElementById("show").dispatchEvent(new Event("change"))`, nil))
	if names := eval[[]string](b, `[...document.querySelectorAll("#list .row")].map(e => e.innerText)`); len(names) > 0 {
		t.Errorf("Services that changed: %q", names)
	}
}

// TestKeyboard uses the page without a mouse.
func TestKeyboard(t *testing.T) {
	b := open(t, review(t))
	focused := func() string { return eval[string](b, `document.activeElement.id`) }
	b.do(input.DispatchKeyEvent(input.KeyRawDown).WithKey("/")) // the page consumes this key, so that it enters no character
	if focused() != "words" {
		t.Fatalf("/ focuses %q", focused())
	}
	b.do(chromedp.KeyEvent("203.0.113"))
	if focused() != "words" {
		t.Errorf("typing focuses %q", focused())
	}
	if got := b.text("#found"); got != "2 of 6 Services" {
		t.Errorf("found %q", got)
	}
	b.do(chromedp.KeyEvent(kb.ArrowDown))
	if focused() != "list" {
		t.Errorf("the arrow focuses %q", focused())
	}
	b.has("#service", "shop/admin")
	b.do(chromedp.KeyEvent(kb.ArrowDown))
	b.has("#service", "shop/edge")
	selected := eval[[]string](b, `[...document.querySelectorAll('#list [aria-selected=true]')].map(e => e.id + " " + e.getAttribute("aria-posinset") + "/" + e.getAttribute("aria-setsize") + " " + document.getElementById("list").getAttribute("aria-activedescendant"))`)
	if !slices.Equal(selected, []string{"row-1 2/2 row-1"}) {
		t.Errorf("selected: %v", selected)
	}
	b.do(chromedp.KeyEvent(kb.Home))
	b.has("#service", "shop/admin")

	// Every link of the sections is reachable, and opens its section.
	b.do(chromedp.Evaluate(`document.querySelector("nav a[href='#trace']").focus()`, nil), chromedp.KeyEvent(kb.Enter), chromedp.WaitVisible("#from"))
	b.do(chromedp.Focus("#from"), chromedp.KeyEvent("192.0.2.200"), chromedp.Focus("#to"), chromedp.KeyEvent("203.0.113.30:443"), chromedp.KeyEvent(kb.Enter), chromedp.WaitVisible("#course table"))
	b.has("#course", "shop/admin", "LoadBalancer 203.0.113.30:443/tcp", "dropped", "all but 198.51.100.0/24")
}

// TestTrace compares the stored results with proxyc trace. A packet without a stored result gets the command only.
func TestTrace(t *testing.T) {
	dir := repository + "/testdata/review"
	b := open(t, review(t))
	for _, test := range []struct{ from, to, want string }{
		{"192.0.2.200", "203.0.113.10:443", "served"}, {"192.0.2.200", "203.0.113.30:443", "dropped"}, {"198.51.100.7", "203.0.113.30:443/TCP", "served"},
		{"10.244.1.40@pod", "10.96.0.20:80", "rejected"}, {"10.244.9.9", "10.96.0.10:443", "served"}, {"10.244.9.9", "192.0.2.11:30443", "served"},
		{"192.0.2.11", "10.96.0.30:443", "served"}, {"192.0.2.11", "203.0.113.30:443", "dropped"},
		{"10.244.9.9", "10.96.0.99:1/udp", ""}, {"127.0.0.1", "10.96.0.30:443", ""}, {"192.0.2.11@eth0", "10.96.0.30:443", ""},
	} {
		b.to("#trace?from=" + test.from + "&to=" + test.to)
		if test.want == "" {
			b.has("#course", "stores no result", "--from "+test.from+" --to "+test.to)
			if strings.Contains(b.text("#course"), "served") {
				t.Errorf("from %s to %s: has a result", test.from, test.to)
			}
			continue
		}
		var trace struct{ Fate string }
		if err := json.Unmarshal([]byte(run(t, dir, "trace", "-c", "config.yaml", "-s", "new", "--hostname-override", "node1", "--from", test.from, "--to", strings.ToLower(test.to), "-o", "json")), &trace); err != nil {
			t.Fatal(err)
		}
		if trace.Fate != test.want {
			t.Errorf("from %s to %s: proxyc trace shows %s, want %s", test.from, test.to, trace.Fate, test.want)
		}
		b.has("#course", test.want)
		if n := eval[int](b, `document.querySelectorAll("#course td .tag").length`); n != 1 {
			t.Errorf("from %s to %s: %d results", test.from, test.to, n)
		}
	}
	b.to("#trace?from=&to=shop/edge:https") // all frontends, all clients
	b.has("#course", "ClusterIP 10.96.0.10:443/tcp", "LoadBalancer 203.0.113.10:443/tcp", "outside", "this node", "--from IP --to shop/edge:https")
	// The author of a link chooses words of a command that others copy.
	b.to("#trace?from=10.1.1.1%40%24(id)%3B'&to=10.96.0.10:80")
	b.has("#course pre", ` --from '10.1.1.1@$(id);'\''' --to 10.96.0.10:80`)
	for input, want := range map[string]string{"from=nonsense&to=10.96.0.1:80": "must be IP or IP@INTERFACE", "from=10.1.1.1&to=shop/none:1": "of a Service"} {
		b.to("#trace?" + input)
		b.has("#course", want)
	}
}

// TestTraceBySource opens pages in which the result depends on the interface, the family and the node's own address.
func TestTraceBySource(t *testing.T) {
	dir := t.TempDir()
	cluster := `apiVersion: v1
kind: Node
metadata: {name: one}
spec: {podCIDRs: [10.244.1.0/24, "2001:db8:1::/64"]}
status: {addresses: [{type: InternalIP, address: 192.0.2.11}, {type: InternalIP, address: "2001:db8::11"}]}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {type: LoadBalancer, clusterIP: 10.96.0.10, clusterIPs: [10.96.0.10, "fd00::10"], ipFamilies: [IPv4, IPv6], loadBalancerSourceRanges: ["2001:db8:7::/48", 192.0.2.11/32], ports: [{name: http, port: 80, nodePort: 30080}]}
status: {loadBalancer: {ingress: [{ip: 203.0.113.5}, {ip: "2001:db8:5::5"}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-6, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv6
ports: [{name: http, port: 8080}]
endpoints: [{addresses: ["2001:db8:1::5"], nodeName: one, conditions: {ready: true}}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-4, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints: [{addresses: [10.244.1.5], nodeName: one, conditions: {ready: true}}]
`
	config := "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nhostnameOverride: one\nmode: %s\ndetectLocalMode: InterfaceNamePrefix\ndetectLocal: {interfaceNamePrefix: cali}\n"
	for _, mode := range []string{"nftables", "ipvs"} {
		for name, text := range map[string]string{"cluster.yaml": cluster, "config.yaml": fmt.Sprintf(config, mode)} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		run(t, dir, "report", "-c", "config.yaml", "-s", "cluster.yaml", "-o", "report.html")
		b := open(t, filepath.Join(dir, "report.html"))
		compared := 0
		for _, from := range []string{"198.51.100.7", "10.244.1.9@cali7", "10.244.1.9", "10.244.7.9", "192.0.2.11", "203.0.113.5", "2001:db8:7::1", "2001:DB8:1:0::9@cali0", "2001:db8:1::9", "2001:db8::11"} {
			for _, to := range []string{"10.96.0.10:80", "203.0.113.5:80", "192.0.2.11:30080", "[fd00::10]:80", "[2001:db8:5:0::5]:80", "[2001:db8::11]:30080"} {
				if strings.HasPrefix(to, "[") != strings.Contains(from, ":") {
					continue
				}
				b.to("#trace?from=" + from + "&to=" + to)
				got := eval[[]string](b, `[...document.querySelectorAll("#course td .tag, #course td .origin")].map(e => e.textContent)`)
				if len(got) == 0 {
					b.has("#course", "stores no result")
					continue
				}
				compared++
				var trace struct {
					Fate         string
					Destinations []struct{ Masquerade bool }
				}
				if err := json.Unmarshal([]byte(run(t, dir, "trace", "-c", "config.yaml", "-s", "cluster.yaml", "--from", from, "--to", to, "-o", "json")), &trace); err != nil {
					t.Fatal(err)
				}
				word := map[string]string{"served": "✓ served", "rejected": "✕ rejected", "dropped": "⌀ dropped"}[trace.Fate]
				if trace.Fate == "served" {
					word += " 1 backend, address " + map[bool]string{true: "masqueraded", false: "kept"}[trace.Destinations[0].Masquerade]
				}
				if strings.Join(got, " ") != word {
					t.Errorf("mode %s, from %s to %s: the page shows %q, proxyc trace %q", mode, from, to, got, word)
				}
			}
		}
		t.Logf("mode %s: %d packets have a stored result", mode, compared)
		if compared < 20 {
			t.Errorf("mode %s: only %d packets have a stored result", mode, compared)
		}
	}
}

// TestInjection checks that no name in a cluster becomes part of the page's markup.
func TestInjection(t *testing.T) {
	dir := t.TempDir()
	const evil = `</script><script>window.pwned=1</script><img src=x onerror=window.pwned=1>`
	quoted, _ := json.Marshal(evil)
	files := map[string]string{
		"config.yaml": "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: nftables\nclusterCIDR: 10.244.0.0/16\n",
		"cluster.yaml": strings.ReplaceAll(`apiVersion: v1
kind: Node
metadata: {name: EVIL}
spec: {podCIDR: 10.244.1.0/24}
status: {addresses: [{type: InternalIP, address: 192.0.2.11}]}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop, annotations: {note: EVIL, proxyc.dev/lint-ignore: EVIL}, labels: {x: EVIL}}
spec: {clusterIP: 10.96.0.10, clusterIPs: [10.96.0.10], ipFamilies: [IPv4], type: LoadBalancer, loadBalancerSourceRanges: [EVIL], selector: {a: EVIL}, ports: [{name: EVIL, port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: EVIL, namespace: EVIL}
spec: {clusterIP: 10.96.0.11, clusterIPs: [10.96.0.11], ipFamilies: [IPv4], ports: [{name: http, port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: EVIL, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: EVIL, port: 8080}]
endpoints: [{addresses: [10.244.1.10], nodeName: EVIL, zone: EVIL, conditions: {ready: true}}]
`, "EVIL", string(quoted)),
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command(proxyc(t), "report", "-c", "config.yaml", "-s", "cluster.yaml", "-o", "report.html")
	cmd.Dir = dir
	out, _ := cmd.CombinedOutput() // exit code 2: some objects are invalid
	file := filepath.Join(dir, "report.html")
	if _, err := os.Stat(file); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	b := open(t, file)
	for _, hash := range []string{"#services", "#services/shop%2Fweb", "#reach", "#findings", "#diff", "#trace?from=10.1.1.1&to=10.96.0.10:80", "#overview"} {
		b.to(hash)
	}
	b.do(chromedp.Evaluate(`dispatchEvent(new Event("beforeprint"))`, nil))
	if !eval[bool](b, `window.pwned === undefined && document.querySelectorAll("img").length === 0 && document.body.innerText.includes("onerror=window.pwned")`) {
		t.Error("a name became a part of the page, or none is shown")
	}
	// Even a script that gets into the page does not run.
	if eval[bool](b, `(() => { const s = document.createElement("script"); try { s.text = "window.pwned = 1"; } catch { return false; } document.body.append(s); return window.pwned === 1; })()`) {
		t.Error("a script that is not the page's own runs")
	}
}

// TestNames checks that everything visible or usable has an accessible name, and that its
// contrast is sufficient.
func TestNames(t *testing.T) {
	b := open(t, review(t))
	need := []string{"textbox", "searchbox", "combobox", "button", "link", "listbox", "option", "image", "table", "region", "navigation"}
	seen := map[string]int{}
	for _, hash := range parts {
		b.to(hash)
		b.do(chromedp.ActionFunc(func(ctx context.Context) error {
			type value struct {
				Value any `json:"value"`
			}
			var tree struct { // the library's own type lacks fields of newer browsers
				Nodes []struct {
					Ignored bool  `json:"ignored"`
					Role    value `json:"role"`
					Name    value `json:"name"`
				} `json:"nodes"`
			}
			err := cdp.Execute(ctx, accessibility.CommandGetFullAXTree, nil, &tree)
			for _, n := range tree.Nodes {
				role := fmt.Sprint(n.Role.Value)
				if n.Ignored || !slices.Contains(need, role) {
					continue
				}
				seen[role]++
				if name, _ := n.Name.Value.(string); strings.TrimSpace(name) == "" {
					t.Errorf("%s: a %s has no name", hash, role)
				}
			}
			return err
		}))
		seenSections := eval[string](b, `[...document.querySelectorAll("main section")].filter(e => e.checkVisibility()).map(e => "#" + e.id).join()`)
		if !strings.HasPrefix(hash, seenSections) {
			t.Errorf("%s: shows %s", hash, seenSections)
		}
		if levels := eval[[]int](b, `[...document.querySelectorAll("main section:not([hidden]) :is(h2,h3,h4)")].map(e => Number(e.tagName[1]))`); len(levels) == 0 || levels[0] != 2 {
			t.Errorf("%s: headings %v", hash, levels)
		} else {
			for i := 1; i < len(levels); i++ {
				if levels[i] > levels[i-1]+1 {
					t.Errorf("%s: headings leave out a level: %v", hash, levels)
				}
			}
		}
	}
	for _, role := range []string{"searchbox", "listbox", "option", "image", "table", "link"} {
		if seen[role] == 0 {
			t.Errorf("the test saw no %s: %v", role, seen)
		}
	}
	for _, scheme := range []string{"light", "dark"} {
		b.do(emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}))
		for _, pair := range eval[[]string](b, `(() => {
			const style = getComputedStyle(document.documentElement), probe = document.createElement("i");
			document.body.append(probe);
			const light = name => {
				probe.style.color = style.getPropertyValue(name);
				const [r, g, b] = getComputedStyle(probe).color.match(/[\d.]+/g).map(v => { v /= 255; return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; });
				return 0.2126 * r + 0.7152 * g + 0.0722 * b;
			};
			const pairs = [];
			for (const ink of ["--ink", "--faint", "--mark", "--good", "--bad", "--warn"]) for (const paper of ["--paper", "--sheet"]) pairs.push([ink, paper]);
			pairs.push(["--good", "--good-sheet"], ["--bad", "--bad-sheet"], ["--warn", "--warn-sheet"], ["--ink", "--chosen"], ["--faint", "--chosen"], ["--on-mark", "--mark"]);
			return pairs.map(([a, b]) => { const x = light(a), y = light(b), c = (Math.max(x, y) + 0.05) / (Math.min(x, y) + 0.05); return c < 4.5 ? a + " on " + b + ": " + c.toFixed(2) : ""; }).filter(Boolean);
		})()`) {
			t.Errorf("%s: contrast is less than 4.5: %s", scheme, pair)
		}
	}
}

// TestPrint prints the page.
func TestPrint(t *testing.T) {
	b := open(t, review(t))
	b.to("#services")
	b.do(chromedp.ActionFunc(func(ctx context.Context) error {
		pdf, _, err := page.PrintToPDF().WithPrintBackground(true).Do(ctx)
		if err == nil && len(pdf) < 20_000 {
			t.Errorf("the PDF has %d bytes", len(pdf))
		}
		if name := os.Getenv("PROXYC_PICTURES"); name != "" && err == nil {
			err = os.WriteFile(filepath.Join(name, "print.pdf"), pdf, 0o644)
		}
		return err
	}))
	if eval[bool](b, `!document.getElementById("printed").hidden || document.getElementById("services").hidden`) {
		t.Error("the layout for print remains on the screen")
	}
	b.do(emulation.SetEmulatedMedia().WithMedia("print"), chromedp.Evaluate(`dispatchEvent(new Event("beforeprint"))`, nil))
	if n := eval[int](b, `[...document.querySelectorAll("#printed svg")].filter(e => e.checkVisibility()).length`); n != 6 {
		t.Errorf("%d drawings are printed, want 6", n)
	}
	if eval[bool](b, `["nav", "#list", "header form"].some(s => document.querySelector(s).checkVisibility())`) {
		t.Error("forms are printed")
	}
	b.has("main", "Overview", "PX413", "lost 5", "shop/stock")
}

// TestPictures takes screenshots for review, if PROXYC_PICTURES names a directory.
func TestPictures(t *testing.T) {
	dir := os.Getenv("PROXYC_PICTURES")
	if dir == "" {
		t.Skip("PROXYC_PICTURES is not set")
	}
	b := open(t, review(t))
	take := func(name string) {
		t.Helper()
		var picture []byte
		b.do(chromedp.FullScreenshot(&picture, 100))
		if err := os.WriteFile(filepath.Join(dir, name+".png"), picture, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, look := range []struct {
		name, scheme  string
		width, height int64
	}{{"narrow", "light", 390, 800}, {"light", "light", 1400, 1000}, {"dark", "dark", 1400, 1000}} {
		b.do(emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: look.scheme}}),
			emulation.SetDeviceMetricsOverride(look.width, look.height, 1, look.name == "narrow"))
		for _, hash := range parts {
			b.to(hash)
			part, _, _ := strings.Cut(strings.TrimPrefix(hash, "#"), "/")
			part, _, _ = strings.Cut(part, "?")
			take(look.name + "-" + part)
		}
	}
	b.do(emulation.SetDeviceMetricsOverride(800, 1100, 1, false), emulation.SetEmulatedMedia().WithMedia("print"), chromedp.Evaluate(`dispatchEvent(new Event("beforeprint"))`, nil))
	take("print")
}

// parts are the links to all parts of the page.
var parts = []string{"#overview", "#services/shop%2Fedge", "#reach", "#findings", "#diff", "#trace?from=192.0.2.200&to=203.0.113.30:443"}

// TestNarrow checks that nothing is wider than a narrow screen.
func TestNarrow(t *testing.T) {
	b := open(t, review(t))
	b.do(emulation.SetDeviceMetricsOverride(360, 740, 2, true))
	for _, hash := range parts {
		b.to(hash)
		if width := eval[int](b, `document.documentElement.scrollWidth`); width > 360 {
			t.Errorf("%s: is %d pixels wide", hash, width)
		}
	}
}

// TestLarge opens a large cluster, and logs how long that and a search take.
func TestLarge(t *testing.T) {
	const services, endpoints = 10_000, 5
	dir := t.TempDir()
	writeCluster(t, filepath.Join(dir, "cluster.json"), services, endpoints)
	if err := os.WriteFile(filepath.Join(dir, "config.yaml"), []byte("apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: nftables\nclusterCIDR: 10.128.0.0/9\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	run(t, dir, "report", "-c", "config.yaml", "-s", "cluster.json", "-o", "report.html")
	t.Logf("written in %s, with reading the cluster", time.Since(began).Round(10*time.Millisecond))
	info, err := os.Stat(filepath.Join(dir, "report.html"))
	if err != nil {
		t.Fatal(err)
	}
	if info.Size() > 15<<20 {
		t.Errorf("the page has %d bytes, and may have 15 MiB", info.Size())
	}
	b := open(t, filepath.Join(dir, "report.html"))
	ready := eval[float64](b, `performance.getEntriesByName("ready")[0].startTime`)
	b.to("#services")
	search := eval[[]float64](b, `["svc-09", "10.96.20.1", "10.128.40", "zzz", "p0 loadbalancer", ""].map(words => {
		const input = document.getElementById("words"), from = performance.now();
		input.value = words;
		input.dispatchEvent(new Event("input"));
		document.getElementById("list").getBoundingClientRect(); // layout, too
		return performance.now() - from;
	})`)
	t.Logf("%d bytes; open after %.0f ms; a search takes at most %.0f ms of %.0f", info.Size(), ready, slices.Max(search), search)
	if got := b.text("#found"); got != "10,000 Services" {
		t.Errorf("found %q", got)
	}
	if n := eval[int](b, `document.querySelectorAll("*").length`); n > 2000 {
		t.Errorf("the page has %d elements: more than what is seen", n)
	}
	b.do(chromedp.Evaluate(`document.getElementById("list").focus()`, nil), chromedp.KeyEvent(kb.End))
	b.has("#service", "svc-09999")
}

// writeCluster writes a cluster of ClusterIP Services, every tenth of which is a LoadBalancer.
func writeCluster(t *testing.T, name string, services, endpoints int) {
	t.Helper()
	type object = map[string]any
	address := func(base, i int) string {
		i += base
		return fmt.Sprintf("%d.%d.%d.%d", i>>24, i>>16&255, i>>8&255, i&255)
	}
	var items []object
	const nodes = 100
	for n := range nodes {
		items = append(items, object{"apiVersion": "v1", "kind": "Node", "metadata": object{"name": fmt.Sprintf("node%d", n+1)},
			"spec":   object{"podCIDR": fmt.Sprintf("10.64.%d.0/24", n)},
			"status": object{"addresses": []object{{"type": "InternalIP", "address": address(192<<24|2<<8|11, n)}}}})
	}
	for i := range services {
		ip, svc := address(10<<24|96<<16|10, i), fmt.Sprintf("svc-%05d", i)
		port := object{"name": "p0", "protocol": "TCP", "port": 80}
		spec := object{"type": "ClusterIP", "clusterIP": ip, "clusterIPs": []string{ip}, "ipFamilies": []string{"IPv4"}, "ports": []object{port}, "selector": object{"app": svc}}
		status := object{}
		if i%10 == 0 {
			port["nodePort"] = 30000 + i/10
			spec["type"], spec["externalTrafficPolicy"] = "LoadBalancer", "Cluster"
			status["loadBalancer"] = object{"ingress": []object{{"ip": address(203<<24|112<<8, i)}}}
		}
		items = append(items, object{"apiVersion": "v1", "kind": "Service", "metadata": object{"name": svc, "namespace": "ns"}, "spec": spec, "status": status})
		var list []object
		for e := range endpoints {
			list = append(list, object{"addresses": []string{address(10<<24|128<<16|1, i*endpoints+e)}, "nodeName": fmt.Sprintf("node%d", (i+e)%nodes+1), "conditions": object{"ready": true}})
		}
		items = append(items, object{"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
			"metadata":  object{"name": svc + "-x", "namespace": "ns", "labels": object{"kubernetes.io/service-name": svc}},
			"ports":     []object{{"name": "p0", "protocol": "TCP", "port": 8080}},
			"endpoints": list})
	}
	text, err := json.Marshal(object{"apiVersion": "v1", "kind": "List", "items": items})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, text, 0o644); err != nil {
		t.Fatal(err)
	}
}
