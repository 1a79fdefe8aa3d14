//go:build !unix

package daemon

import "io/fs"

// trusted looks at nothing: who may write a file, its mode does not tell here.
func trusted(fs.FileInfo) error { return nil }
