//go:build !linux

package watch

import "errors"

// newNotifier fails, so that directories are polled.
func newNotifier() (notifier, error) { return nil, errors.New("not supported on this system") }
