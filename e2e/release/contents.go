package main

import (
	"bytes"
	"context"
	"debug/buildinfo"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"sync"

	cdx "github.com/CycloneDX/cyclonedx-go"
	"github.com/google/licenseclassifier/v2/assets"
	"github.com/google/uuid"
)

// contents returns a CycloneDX document with the contents of a program: each module with version,
// checksum and licence. It does not contain when or where it was made.
func contents(ctx context.Context, source string, info *buildinfo.BuildInfo) ([]byte, error) {
	dirs, err := moduleDirs(ctx, source)
	if err != nil {
		return nil, err
	}
	main := component(&info.Main, cdx.ComponentTypeApplication)
	main.Name = "proxyc"
	platform := setting(info, "GOOS") + "/" + setting(info, "GOARCH")
	main.Properties = &[]cdx.Property{{Name: "platform", Value: platform}, {Name: "commit", Value: setting(info, "vcs.revision")}}
	std := cdx.Component{BOMRef: "std", Type: cdx.ComponentTypeLibrary, Name: "std", Version: info.GoVersion,
		PackageURL: "pkg:golang/std@" + strings.TrimPrefix(info.GoVersion, "go"), Licenses: licensed("BSD-3-Clause")}
	components := []cdx.Component{std}
	needs := []string{std.BOMRef}
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		c := component(m, cdx.ComponentTypeLibrary)
		names, err := licences(dirs[m.Path])
		if err != nil {
			return nil, fmt.Errorf("module %s: %w", m.Path, err)
		}
		c.Licenses = licensed(names...)
		components, needs = append(components, c), append(needs, c.BOMRef)
	}
	bom := cdx.NewBOM()
	bom.SerialNumber = uuid.NewSHA1(uuid.NameSpaceURL, []byte(main.PackageURL+"#"+platform)).URN()
	bom.Metadata = &cdx.Metadata{Timestamp: setting(info, "vcs.time"), Component: &main}
	bom.Components = &components
	bom.Dependencies = &[]cdx.Dependency{{Ref: main.BOMRef, Dependencies: &needs}}
	var out bytes.Buffer
	enc := cdx.NewBOMEncoder(&out, cdx.BOMFileFormatJSON)
	enc.SetPretty(true)
	if err := enc.Encode(bom); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

func component(m *debug.Module, kind cdx.ComponentType) cdx.Component {
	url := "pkg:golang/" + m.Path + "@" + m.Version
	c := cdx.Component{BOMRef: url, Type: kind, Name: m.Path, Version: m.Version, PackageURL: url}
	// go.sum's h1 is SHA-256 over the list of a module's files.
	if sum, ok := strings.CutPrefix(m.Sum, "h1:"); ok {
		if b, err := base64.StdEncoding.DecodeString(sum); err == nil {
			c.Hashes = &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: fmt.Sprintf("%x", b)}}
		}
	}
	return c
}

func licensed(names ...string) *cdx.Licenses {
	var l cdx.Licenses
	for _, name := range names {
		l = append(l, cdx.LicenseChoice{License: &cdx.License{ID: name}})
	}
	return &l
}

// moduleDirs returns the directory of each module that the sources need.
func moduleDirs(ctx context.Context, source string) (map[string]string, error) {
	cmd := exec.CommandContext(ctx, "go", "list", "-m", "-json", "all")
	cmd.Dir = source
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list -m: %w\n%s", err, &stderr)
	}
	dirs := map[string]string{}
	for dec := json.NewDecoder(bytes.NewReader(out)); dec.More(); {
		var m struct{ Path, Dir string }
		if err := dec.Decode(&m); err != nil {
			return nil, err
		}
		dirs[m.Path] = m.Dir
	}
	return dirs, nil
}

// classifier recognizes the texts of licences.
var classifier = sync.OnceValues(assets.DefaultClassifier)

// licences returns the SPDX names of the licences in a module's files.
func licences(dir string) ([]string, error) {
	known, err := classifier()
	if err != nil {
		return nil, err
	}
	files, err := fs.ReadDir(os.DirFS(dir), ".")
	if err != nil {
		return nil, err
	}
	var names []string
	for _, file := range files {
		if !licenceFile.MatchString(file.Name()) || file.IsDir() {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, file.Name()))
		if err != nil {
			return nil, err
		}
		before := len(names)
		for _, m := range known.Match(text).Matches {
			if m.MatchType == "License" {
				names = append(names, m.Name)
			}
		}
		if len(names) == before {
			return nil, fmt.Errorf("%s: no licence that is known", file.Name())
		}
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("no licence in %q", dir)
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// licenceFile is the name of a file with a licence.
var licenceFile = regexp.MustCompile(`(?i)^(licen[sc]e|copying)([.-].*)?$`)
