//go:build !linux

package watch

import "errors"

// notifier reports what happens in directories: on Linux only, as the daemon.
type notifier struct{ events chan happening }

func newNotifier() (*notifier, error) { return nil, errors.New("not on this system") }

func (*notifier) watch(map[string]interest) error { return nil }

// Close ends the watch.
func (*notifier) Close() {}
