package packets

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/proxyc/proxyc/apply/applytest"
)

// change adds, changes or removes some Services.
func (r worldRandom) change(w world) {
	for range 1 + r.IntN(3) {
		i := r.IntN(10)
		switch s := w[i]; {
		case s == nil || r.chance(4):
			w[i] = r.service()
		case r.chance(3):
			delete(w, i)
		default:
			s.Endpoints = r.pods(r.IntN(len(worldPods) + 1))
		}
	}
}

// TestOrphan has a tool that outlives its apply and is still running. The next apply waits for it.
func TestOrphan(t *testing.T) {
	t.Parallel()
	applytest.RequireRoot(t)
	for _, p := range planes {
		if p.mode != "iptables" {
			continue
		}
		t.Run(p.String(), func(t *testing.T) {
			config, _ := takeoverFiles()
			m := newMachine(t, nil)
			olds, news := world{}, world{}
			r := newWorldRandom(5)
			r.change(olds)
			r.change(news)
			old, new := m.file("old.json", olds.snapshot(t)), m.file("new.json", news.snapshot(t))
			m.must(0, m.apply(p, config, old))
			before := m.dump()

			whole := m.env
			began, gate := filepath.Join(m.dir, "began"), filepath.Join(m.dir, "gate")
			m.tool("", "mkfifo", began, gate)
			m.shim("iptables-"+p.variant+"-restore", fmt.Sprintf("text=$(cat)\necho > %s\nread go < %s\nprintf '%%s\\n' \"$text\" | \"$real\" \"$@\"", began, gate))
			cmd, wait := m.start(nil, applyArgs(p, config, new)...)
			m.env = whole
			readFile(t, began) // returns when the tool has started
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			wait()
			_, waitNext := m.start(nil, applyArgs(p, config, old)...)
			ended := make(chan ran)
			go func() { ended <- waitNext() }()
			select {
			case r := <-ended:
				t.Errorf("did not wait: %s", r)
				return
			case <-time.After(500 * time.Millisecond):
			}
			if err := os.WriteFile(gate, []byte("go\n"), 0); err != nil {
				t.Fatal(err)
			}
			m.must(0, <-ended)
			m.same(before, "applied after the orphan")
		})
	}
}
