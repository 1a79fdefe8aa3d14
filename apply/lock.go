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
type Lock struct {
	file *os.File
	owns string // identifies the network namespace whose rules it protects
}

// Note returns the text that an owner of the lock left in memory for the next one, about the rules in
// the kernel. It is lost, like the rules, when the node starts again.
func (l *Lock) Note() (text string, ok bool) { return note(l.noteFile(), l.owns) }

func note(file, of string) (text string, ok bool) {
	data, err := os.ReadFile(file)
	text, owns, _ := strings.Cut(string(data), "\n")
	if errors.Is(err, os.ErrNotExist) || owns != "" && owns != of {
		return "", false
	}
	return text, true
}

// SetNote replaces the note. If that fails, it is empty or unchanged. Every process that writes rules
// sets it before, if only to "": without a note, the node was restarted, or an older version wrote them.
func (l *Lock) SetNote(text string) error {
	return os.WriteFile(l.noteFile(), []byte(text+"\n"+l.owns), 0o600)
}

// RemoveNote records that no rules remain.
func (l *Lock) RemoveNote() error { return os.RemoveAll(l.noteFile()) }

func (l *Lock) noteFile() string { return noteOf(l.file.Name()) }

// noteOf returns the file of the note of the lock in a file.
func noteOf(file string) string { return strings.TrimSuffix(file, ".lock") + ".note" }

// isAt reports whether a path is that of an open file.
func isAt(f *os.File, path string) bool {
	is, err := f.Stat()
	at, errAt := os.Lstat(path)
	return err == nil && errAt == nil && os.SameFile(is, at)
}

// Held reports whether no other process can acquire the lock. One can if the lock's file was removed.
func (l *Lock) Held() bool { return isAt(l.file, l.file.Name()) }

// Path returns the path of the lock's file.
func (l *Lock) Path() string { return l.file.Name() }

// Descriptor is the argument of InheritLock in the program that the process executes next.
func (l *Lock) Descriptor() uintptr { return l.file.Fd() }

// lockEvery is the interval of attempts to acquire a lock. A context cannot interrupt a blocking wait.
const lockEvery = 20 * time.Millisecond

// WaitForLock calls try until it does not return the error held, or ctx ends.
func WaitForLock(ctx context.Context, try func() error, held error) error {
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

// lockOwner describes this process, in a lock file.
func lockOwner() string {
	return fmt.Sprintf("process %d (%s)\n", os.Getpid(), Redact(strings.Join(os.Args, " ")))
}

// lockError returns the error for a lock that could not be acquired. It names the owner, from
// ownerFile.
func lockError(path, ownerFile string, err, held error) error {
	if errors.Is(err, held) {
		owner, _ := os.ReadFile(ownerFile)
		return fmt.Errorf("lock %s: held by %s", path, strings.TrimSpace(string(owner)))
	}
	return fmt.Errorf("lock %s: %w", path, err)
}
