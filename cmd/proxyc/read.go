package main

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"path/filepath"
	"slices"
	"strings"

	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/compiler/snapshot"
)

// standardInput is the name of a file that stands for it.
const standardInput = "-"

var errStdinTwice = errors.New("standard input can be given once")

// oneStdin refuses standard input in more than one place: who comes second
// would find it empty.
func oneStdin(names ...string) error {
	first := slices.Index(names, standardInput)
	if first >= 0 && slices.Contains(names[first+1:], standardInput) {
		return errStdinTwice
	}
	return nil
}

// rereading returns what makes an env in which standard input, if it is among the
// names, starts anew.
func (e *env) rereading(names []string, limit int64) (func() *env, error) {
	if !slices.Contains(names, standardInput) {
		return func() *env { return e }, nil
	}
	left := cmp.Or(limit, noLimit)
	data, err := readAll(e.stdin, 0, &left)
	if errors.Is(err, errTooMuch) {
		err = tooMuch(limit)
	}
	return func() *env {
		again := *e
		again.stdin = bytes.NewReader(data)
		return &again
	}, err
}

// noLimit stands for a limit that is not there.
const noLimit = math.MaxInt64 - 1

func tooMuch(limit int64) error {
	return fmt.Errorf("with it the snapshot has more than the %d bytes of --snapshot-limit", limit)
}

// configLimit is how much a configuration file may have. The API server takes
// no object of more than 3 MiB; a List of ConfigMaps may have many.
const configLimit = 64 << 20

// readFile reads a configuration file, or standard input for "-".
func (e *env) readFile(name string) ([]byte, error) {
	left := int64(configLimit)
	data, err := e.read(name, &left)
	if errors.Is(err, errTooMuch) {
		err = fmt.Errorf("must have no more than %dMi, has more", configLimit>>20)
	}
	return data, err
}

var errTooMuch = errors.New("too much")

// read reads a file that may be compressed with gzip, or standard input for
// "-", and takes what it has off from left. It reads no more than that: then it
// returns errTooMuch. An error does not have the name.
func (e *env) read(name string, left *int64) ([]byte, error) {
	from, size := e.stdin, int64(0)
	if name != standardInput {
		file, err := e.files.Open(name)
		if err != nil {
			return nil, reason(err)
		}
		defer file.Close()
		if info, err := file.Stat(); err == nil {
			size = info.Size()
		}
		from = file
	}
	data, err := readAll(from, size, left)
	if err != nil || !bytes.HasPrefix(data, []byte("\x1f\x8b")) {
		return data, reason(err)
	}
	// What is compressed counts as little as what it stands for counts as much.
	*left += int64(len(data))
	unzip, err := gzip.NewReader(bytes.NewReader(data))
	if err == nil {
		data, err = readAll(unzip, 0, left)
	}
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF):
		return nil, errors.New("cut off: the compressed data ends before it is complete")
	case err != nil:
		return nil, reason(err)
	case bytes.HasPrefix(data[min(len(data), 257):], []byte("ustar")):
		return nil, errors.New("is a tar archive: unpack it, and give the directory")
	}
	return data, nil
}

// readAll reads all there is, some size bytes, but no more than left, and takes
// it off from that.
func readAll(from io.Reader, size int64, left *int64) ([]byte, error) {
	if size > *left {
		return nil, errTooMuch
	}
	// In pieces, so that what is too much does not take a multiple of the limit.
	from = io.LimitReader(from, *left+1)
	var pieces [][]byte
	p := make([]byte, 0, size+bytes.MinRead)
	for {
		n, err := from.Read(p[len(p):cap(p)])
		p = p[:len(p)+n]
		*left -= int64(n)
		switch {
		case *left < 0:
			return nil, errTooMuch
		case err == io.EOF && len(pieces) == 0:
			return p, nil
		case err == io.EOF:
			return bytes.Join(append(pieces, p), nil), nil
		case err != nil:
			return nil, err
		case len(p) == cap(p):
			pieces, p = append(pieces, p), make([]byte, 0, pieceSize)
		}
	}
}

// pieceSize is how much is read at a time where nobody knows how much there is.
const pieceSize = 1 << 20

// reason returns what is wrong with a file, without its name and what was tried.
func reason(err error) error {
	if path := (*fs.PathError)(nil); errors.As(err, &path) {
		return path.Err
	}
	return err
}

// found is a file to read.
type found struct {
	name string
	// fromDirectory reports that nobody named it: a directory has it, and it may be no file of objects.
	fromDirectory bool
}

// expand returns the files below a directory that can hold objects, in order of
// name, without hidden ones, which editors and other programs leave; what is no
// directory stands for itself. What is neither a file nor a directory would
// hold up its reader: below a directory it is told, and passed over. A link to a
// directory is not followed there, so that no way leads in a circle.
func (e *env) expand(name string, diags *diag.List) ([]found, error) {
	if name == standardInput {
		return []found{{name: name}}, nil
	}
	info, err := e.files.Stat(name)
	if err != nil || !info.IsDir() {
		return []found{{name: name}}, reason(err)
	}
	var files []found
	if err := e.walk(name, &files, diags); err != nil {
		return nil, err
	}
	if len(files) == 0 {
		return nil, errors.New("has no .yaml, .yml or .json file")
	}
	return files, nil
}

func (e *env) walk(dir string, files *[]found, diags *diag.List) error {
	entries, err := e.files.ReadDir(dir)
	if err != nil {
		return reason(err)
	}
	for _, entry := range entries {
		name := filepath.Join(dir, entry.Name())
		switch {
		case strings.HasPrefix(entry.Name(), "."):
		case entry.IsDir():
			if err := e.walk(name, files, diags); err != nil {
				return err
			}
		case snapshot.NamesObjects(strings.TrimSuffix(entry.Name(), ".gz")):
			info, err := e.files.Stat(name)
			switch {
			case err != nil:
				diags.Add(diag.Diagnostic{Severity: diag.Error, File: name, Msg: reason(err).Error()})
			case info.Mode().IsRegular():
				*files = append(*files, found{name, true})
			case !info.IsDir():
				diags.Add(diag.Diagnostic{Severity: diag.Warning, File: name, Msg: "is not read: it is neither a file nor a directory"})
			}
		}
	}
	return nil
}
