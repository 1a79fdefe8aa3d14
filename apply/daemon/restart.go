package daemon

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"syscall"
	"time"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/daemon/host"
)

// Restart is the error of a daemon that has to start again. The rules are in the kernel, and the lock
// is held.
type Restart struct {
	lock     *apply.Lock // nil if it was not acquired
	failures int         // consecutive, to apply the configuration
}

func (*Restart) Error() string {
	return "the configuration changed: the daemon has to be started again"
}

// restartEnv passes a Restart to the next program: the lock's descriptor and the failures.
const restartEnv = "PROXYC_RESTART"

// Exec executes this program again, with the same arguments. It returns only errors. Windows has no
// such call: there, as with kube-proxy, another program has to start the process.
func (r *Restart) Exec() error {
	program, err := os.Executable()
	if runtime.GOOS == "windows" || err != nil {
		return r
	}
	lock := -1
	if r.lock != nil {
		lock = int(r.lock.Descriptor())
	}
	return syscall.Exec(program, os.Args, append(os.Environ(), fmt.Sprintf("%s=%d %d", restartEnv, lock, r.failures)))
}

// inherit returns the Restart that this program follows; nil if it is the first. External tools do not
// inherit it.
func inherit() *Restart {
	lock, r := -1, &Restart{}
	if _, err := fmt.Sscan(os.Getenv(restartEnv), &lock, &r.failures); err != nil {
		return nil
	}
	os.Unsetenv(restartEnv)
	r.lock = host.InheritLock(uintptr(lock))
	return r
}

// First and longest wait before a configuration is tried again that could not be applied.
const (
	firstRetry   = 10 * time.Second
	longestRetry = time.Hour
)

// keepRules applies and maintains the rules until ctx ends. The first program ends if that fails, as
// kube-proxy does. One that follows a Restart has rules to keep: it waits, and starts again.
func (s *session) keepRules(ctx context.Context) error {
	err := s.rules.run(ctx)
	if err == nil || s.rules.follows == nil {
		return err
	}
	failures := s.rules.follows.failures + 1
	s.faults.retrying("applying the configuration", err)
	s.health.SetNotReady("the configuration cannot be applied, and is retried: " + err.Error())
	select {
	case <-ctx.Done():
		return nil
	case <-s.rules.again:
	case <-time.After(apply.Backoff(failures, firstRetry, longestRetry)):
	}
	return &Restart{failures: failures}
}
