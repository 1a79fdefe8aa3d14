//go:build !linux

package apply

// InheritLock returns nil: only on Linux can a process execute itself.
func InheritLock(string, uintptr) *Lock { return nil }

// LastNote returns nothing: only on Linux do locks have notes.
func LastNote(string) (string, bool) { return "", false }

// CheckLock looks at nothing.
func CheckLock(string) error { return nil }

// LockOwner returns nothing: on Windows, a locked file cannot be read.
func LockOwner(string) (owner, killed string) { return "", "" }
