package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// archive is the name of the target's program as a plugin of kubectl.
func (t target) archive() string { return "kubectl-proxyc-" + t.os + "-" + t.arch + ".tar.gz" }

// bin is the program's name in the archive.
func (t target) bin() string {
	if t.os == "windows" {
		return "kubectl-proxyc.exe"
	}
	return "kubectl-proxyc"
}

// pack returns the archive that krew installs. It contains the program, under its name as a
// plugin, and the licence, but not when or by whom it was made.
func (r *release) pack(t target, program []byte) ([]byte, error) {
	licence, err := os.ReadFile(filepath.Join(r.source, "LICENSE"))
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	zipped := gzip.NewWriter(&out)
	files := tar.NewWriter(zipped)
	for _, f := range []struct {
		name string
		mode int64
		data []byte
	}{{t.bin(), 0o755, program}, {"LICENSE", 0o644, licence}} {
		header := &tar.Header{Typeflag: tar.TypeReg, Name: f.name, Mode: f.mode, Size: int64(len(f.data)), Format: tar.FormatUSTAR}
		if err := files.WriteHeader(header); err != nil {
			return nil, err
		}
		if _, err := files.Write(f.data); err != nil {
			return nil, err
		}
	}
	if err := files.Close(); err != nil {
		return nil, err
	}
	if err := zipped.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// krewFile is the manifest before the version and checksums of a release are filled in.
const krewFile = "krew.yaml"

// krew returns the manifest for the archives of a release, with their checksums by name. It omits
// platforms that were not built.
func (r *release) krew(version string, sums map[string]string) ([]byte, error) {
	text, err := os.ReadFile(filepath.Join(r.source, "docs/deploy", krewFile))
	if err != nil {
		return nil, err
	}
	const each = "  - selector:"
	head, rest, ok := strings.Cut(string(text), each)
	if !ok {
		return nil, fmt.Errorf("%s: has no platforms", krewFile)
	}
	var out strings.Builder
	out.WriteString(strings.Replace(head, "PROXYC_VERSION", version, 1))
	written := 0
	for platform := range strings.SplitSeq(rest, each) {
		for name, sum := range sums {
			if strings.Contains(platform, "/"+name+"\n") {
				out.WriteString(each + strings.Replace(platform, "PROXYC_SHA256", sum, 1))
				written++
			}
		}
	}
	if written != len(sums) {
		return nil, fmt.Errorf("%s: has %d of the %d platforms of the release", krewFile, written, len(sums))
	}
	return []byte(out.String()), nil
}
