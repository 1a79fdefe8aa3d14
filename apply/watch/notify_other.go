//go:build !linux

package watch

import "errors"

// notifier reports changes in directories. It works only on Linux, like the daemon.
type notifier struct{}

func newNotifier() (*notifier, error) { return nil, errors.New("not on this system") }

func (*notifier) watch(map[string]interest) error { return nil }

func (*notifier) events() <-chan happening { return nil }

// Close ends the watch.
func (*notifier) Close() {}
