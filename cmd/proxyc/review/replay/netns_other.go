//go:build !linux

package replay

import "errors"

// Enter returns an error: only Linux has network namespaces.
func Enter(string) error { return errors.New("--netns: only on Linux") }
