package watch

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/proxyc/proxyc/apply/files"
)

// pollEvery is the polling interval if the kernel cannot report changes. inotify fails if other
// processes have used up fs.inotify's limits, or if a seccomp filter denies it.
const pollEvery = 5 * time.Second

// poller reports changes in directories by polling.
type poller struct {
	out  chan fileEvent
	stop func()

	mu   sync.Mutex
	dirs map[string]interest
	seen string
}

func newPoller(every time.Duration) *poller {
	p := &poller{out: make(chan fileEvent)}
	ended := make(chan struct{})
	p.stop = sync.OnceFunc(func() { close(ended) })
	go func() {
		defer close(p.out)
		ticker := time.NewTicker(every)
		defer ticker.Stop()
		for {
			select {
			case <-ended:
				return
			case <-ticker.C:
			}
			if !p.changed() {
				continue
			}
			select {
			case <-ended:
				return
			case p.out <- fileEvent{}:
			}
		}
	}()
	return p
}

func (p *poller) events() <-chan fileEvent { return p.out }

// Close ends the polling.
func (p *poller) Close() { p.stop() }

// watch polls exactly these directories from now on.
func (p *poller) watch(dirs map[string]interest) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dirs, p.seen = dirs, fingerprint(dirs)
	return nil
}

// changed reports whether the fingerprint changed.
func (p *poller) changed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := fingerprint(p.dirs)
	was := p.seen
	p.seen = now
	return now != was
}

// fingerprint describes the relevant names in directories: types, sizes, times and link targets.
func fingerprint(dirs map[string]interest) string {
	var all []string
	for dir, of := range dirs {
		names := map[string]bool{}
		for name := range of.names {
			names[filepath.Join(dir, name)] = true
		}
		if of.objects {
			entries, _ := os.ReadDir(dir) // an unreadable directory counts as empty
			for _, e := range entries {
				if e.IsDir() && !files.IsHidden(e.Name()) || files.IsObjects(e.Name()) {
					names[filepath.Join(dir, e.Name())] = true
				}
			}
		}
		for name := range names {
			if info, err := os.Lstat(name); err == nil {
				to, _ := os.Readlink(name)
				line := fmt.Sprintf("%s %s %s", name, info.Mode().Type(), to)
				if !info.IsDir() {
					line += fmt.Sprintf(" %d %d", info.Size(), info.ModTime().UnixNano())
				}
				all = append(all, line)
			}
		}
	}
	slices.Sort(all)
	return strings.Join(all, "\n")
}
