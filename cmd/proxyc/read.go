package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/proxyc/proxyc/apply/files"
	"github.com/proxyc/proxyc/compiler/diag"
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
	left := cmp.Or(limit, files.Unlimited)
	data, err := files.ReadFrom(e.stdin, 0, &left)
	if errors.Is(err, files.ErrTooMuch) {
		err = files.TooMuch("standard input", limit)
	}
	return func() *env {
		again := *e
		again.stdin = bytes.NewReader(data)
		return &again
	}, err
}

// configLimit is how much a configuration file may have. The API server takes
// no object of more than 3 MiB; a List of ConfigMaps may have many.
const configLimit = 64 << 20

// readFile reads a configuration file, or standard input for "-".
func (e *env) readFile(name string) ([]byte, error) {
	left := int64(configLimit)
	data, err := e.read(name, &left)
	if errors.Is(err, files.ErrTooMuch) {
		err = fmt.Errorf("must have no more than %dMi, has more", configLimit>>20)
	}
	return data, err
}

// read reads a file as files.Read does, or standard input for "-".
func (e *env) read(name string, left *int64) ([]byte, error) {
	if name == standardInput {
		return files.ReadFrom(e.stdin, 0, left)
	}
	return files.Read(e.files, name, left)
}

// expand returns the files that a name stands for, and tells what is passed over.
func (e *env) expand(name string, diags *diag.List) ([]files.File, error) {
	if name == standardInput {
		return []files.File{{Name: name}}, nil
	}
	if name == "" {
		return nil, errors.New("-s: must name a file or a directory, got \"\"")
	}
	found, err := files.Find(e.files, name)
	if err != nil {
		return nil, err
	}
	for _, p := range found.Passed {
		diags.Add(diag.Diagnostic{Severity: diag.Warning, Code: diag.FilePassedOver, File: p.Name, Msg: "is not read: it is " + p.Is})
	}
	for _, u := range found.Unreadable {
		diags.Add(diag.Diagnostic{Severity: diag.Error, Code: diag.FileUnreadable, File: u.Name, Msg: u.Err.Error()})
	}
	if len(found.Files)+len(found.Unreadable) == 0 {
		return nil, errors.New("has no .yaml, .yml or .json file")
	}
	return found.Files, nil
}
