package daemon

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
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
	config   []byte      // content of the file, which may be invalid by now
}

func (*Restart) Error() string {
	return "the configuration or the lock changed: the daemon has to be started again"
}

// restartEnv passes a Restart to the next program: the lock's descriptor, the failures and, in the
// next lines, the configuration.
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
	env := fmt.Sprintf("%s=%d %d", restartEnv, lock, r.failures)
	for _, attempt := range [...]struct{ program, env string }{
		{program, env + "\n" + string(r.config)},
		{"/proc/self/exe", env + "\n" + string(r.config)}, // if the file of the program was replaced
		{"/proc/self/exe", env},                           // if the configuration is too long, which Linux limits to 128 KiB
	} {
		err = syscall.Exec(attempt.program, os.Args, append(os.Environ(), attempt.env))
	}
	return err
}

// Inherit returns the Restart that this program follows, and the content of the configuration file that
// the program before checked; nil if there is none. External tools do not inherit it.
func Inherit() (*Restart, []byte) {
	lock, r := -1, &Restart{}
	first, config, _ := strings.Cut(os.Getenv(restartEnv), "\n")
	if _, err := fmt.Sscan(first, &lock, &r.failures); err != nil {
		return nil, nil
	}
	os.Unsetenv(restartEnv)
	r.lock = host.InheritLock(uintptr(lock))
	if config == "" {
		return r, nil
	}
	return r, []byte(config)
}

// First and longest wait before a configuration is tried again that could not be applied.
const (
	firstRetry   = 10 * time.Second
	longestRetry = time.Hour
)

// keepRules applies and maintains the rules until ctx ends. The first program ends if that fails, as
// kube-proxy does. One that follows a Restart has rules to keep: it waits, and starts again.
func (s *session) keepRules(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	s.rules.lost = func() { cancel(&Restart{config: s.config.File}) }
	err := s.rules.run(ctx)
	if restart, ok := errors.AsType[*Restart](context.Cause(ctx)); ok {
		return restart
	}
	if err == nil || s.Follows == nil {
		return err
	}
	failures := s.Follows.failures + 1
	s.faults.retrying("applying the configuration", err)
	s.health.SetNotReady("the configuration cannot be applied, and is retried: " + err.Error())
	select {
	case <-ctx.Done():
		return nil
	case <-s.rules.again:
	case <-time.After(apply.Backoff(failures, firstRetry, longestRetry)):
	}
	return &Restart{failures: failures, config: s.config.File}
}
