//go:build !unix

package daemon

import "io/fs"

// trusted accepts every file: on this system the mode does not show who may write it.
func trusted(fs.FileInfo) error { return nil }
