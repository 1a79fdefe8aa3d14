package main

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// tree is the content of a layer: files, links and directories by path, without a leading slash.
// All belong to root, and have the same time.
type tree map[string]entry

type entry struct {
	mode fs.FileMode
	from string // file with the contents
	link string // target of a link
}

// addFile adds a program or another file, and its parent directories.
func (t tree) addFile(at, from string, mode fs.FileMode) {
	t.parents(at)
	t[at] = entry{mode: mode, from: from}
}

func (t tree) addLink(at, to string) {
	t.parents(at)
	t[at] = entry{mode: fs.ModeSymlink | 0o777, link: to}
}

func (t tree) parents(at string) {
	for dir := filepath.Dir(at); dir != "." && dir != "/"; dir = filepath.Dir(dir) {
		if _, ok := t[dir]; !ok {
			t[dir] = entry{mode: fs.ModeDir | 0o755}
		}
	}
}

// addDir adds the content of a directory, except for paths that match without.
func (t tree) addDir(root string, without func(at string) bool) error {
	return filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == root {
			return err
		}
		at, err := filepath.Rel(root, path)
		if err != nil || without(at) {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		e := entry{mode: info.Mode(), from: path}
		switch {
		case d.IsDir():
			e.from = ""
		case info.Mode()&fs.ModeSymlink != 0:
			e.from = ""
			if e.link, err = os.Readlink(path); err != nil {
				return err
			}
		case !info.Mode().IsRegular():
			return fmt.Errorf("%s: is neither a file, a directory nor a link", at)
		}
		t.parents(at)
		t[at] = e
		return nil
	})
}

// layer packs a tree. The same tree and time give the same bytes.
func (t tree) layer(at time.Time) (v1.Layer, error) {
	var packed bytes.Buffer
	w := tar.NewWriter(&packed)
	paths := make([]string, 0, len(t))
	for path := range t {
		paths = append(paths, path)
	}
	slices.Sort(paths)
	for _, path := range paths {
		if err := t[path].write(w, path, at); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(packed.Bytes())), nil }
	return tarball.LayerFromOpener(open, tarball.WithMediaType(types.OCILayer))
}

func (e entry) write(w *tar.Writer, path string, at time.Time) error {
	h := &tar.Header{Name: path, Mode: int64(e.mode.Perm()), ModTime: at, Format: tar.FormatPAX}
	switch {
	case e.mode.IsDir():
		h.Typeflag, h.Name = tar.TypeDir, path+"/"
	case e.link != "":
		h.Typeflag, h.Linkname = tar.TypeSymlink, e.link
	default:
		data, err := os.ReadFile(e.from)
		if err != nil {
			return err
		}
		h.Typeflag, h.Size = tar.TypeReg, int64(len(data))
		if err := w.WriteHeader(h); err != nil {
			return err
		}
		_, err = w.Write(data)
		return err
	}
	return w.WriteHeader(h)
}
