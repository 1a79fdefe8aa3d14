package apply

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"
)

// Lock is held by the one process that may change a node's rules.
type Lock struct{ file *os.File }

// lockEvery is how often a lock that somebody holds is tried: a wait for it cannot
// be interrupted by a context.
const lockEvery = 20 * time.Millisecond

// waitForLock tries to take a lock until ctx ends, as long as the answer is held.
func waitForLock(ctx context.Context, try func() error, held error) error {
	ticker := time.NewTicker(lockEvery)
	defer ticker.Stop()
	for {
		err := try()
		if !errors.Is(err, held) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-ticker.C:
		}
	}
}

// lockOwner is what the owner of a lock writes of itself.
func lockOwner() string {
	return fmt.Sprintf("process %d (%s)\n", os.Getpid(), strings.Join(os.Args, " "))
}

// lockError is that of a lock which could not be taken: it names who holds it, as
// written in ownerFile.
func lockError(path, ownerFile string, err, held error) error {
	if errors.Is(err, held) {
		owner, _ := os.ReadFile(ownerFile)
		return fmt.Errorf("lock %s: held by %s", path, strings.TrimSpace(string(owner)))
	}
	return fmt.Errorf("lock %s: %w", path, err)
}
