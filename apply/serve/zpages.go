package serve

import (
	"fmt"
	"maps"
	"mime"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"time"
)

const textPlain = "text/plain; charset=utf-8"

// warning is the header of the pages in text form, which is for people.
const warning = "\n%s %s\nWarning: this page is for people, and its form changes without notice.\n\n"

// zpage is the header of a page as an object of group config.k8s.io (KEP-4827, statusz; KEP-4828,
// flagz).
type zpage struct {
	Kind       string   `json:"kind"`
	APIVersion string   `json:"apiVersion"`
	Metadata   metadata `json:"metadata"`
}

type metadata struct {
	Name string `json:"name"`
}

func (d *Debug) flagz(w http.ResponseWriter, r *http.Request) {
	flags := d.Flags()
	d.page(w, r, "Flagz",
		func(head zpage) any {
			return struct {
				zpage
				Flags map[string]string `json:"flags,omitempty"`
			}{head, flags}
		},
		func(b *strings.Builder) {
			for _, name := range slices.Sorted(maps.Keys(flags)) {
				fmt.Fprintf(b, "%s=%s\n", name, flags[name])
			}
		})
}

func (d *Debug) statusz(w http.ResponseWriter, r *http.Request) {
	up := d.Now().Sub(d.Started).Truncate(time.Second)
	paths := []string{"/configz", "/healthz", "/metrics", "/proxyMode"}
	if d.Flags != nil {
		paths = slices.Insert(paths, 1, "/flagz")
	}
	d.page(w, r, "Statusz",
		func(head zpage) any {
			return struct {
				zpage
				StartTime     time.Time `json:"startTime"`
				UptimeSeconds int64     `json:"uptimeSeconds"`
				GoVersion     string    `json:"goVersion"`
				BinaryVersion string    `json:"binaryVersion"`
				Paths         []string  `json:"paths"`
			}{head, d.Started.UTC().Truncate(time.Second), int64(up / time.Second), runtime.Version(), d.Version, paths}
		},
		func(b *strings.Builder) {
			fmt.Fprintf(b, "Started: %s\n", d.Started.Format(time.UnixDate))
			fmt.Fprintf(b, "Up: %d hr %02d min %02d sec\n", up/time.Hour, up%time.Hour/time.Minute, up%time.Minute/time.Second)
			fmt.Fprintf(b, "Go version: %s\nBinary version: %s\n\n", runtime.Version(), d.Version)
			fmt.Fprintf(b, "Paths: %s\n", strings.Join(paths, " "))
		})
}

// page responds in the format of the Accept header: text, or the object in a version of the group.
func (d *Debug) page(w http.ResponseWriter, r *http.Request, kind string, object func(zpage) any, text func(*strings.Builder)) {
	switch version, form := negotiate(r.Header.Get("Accept"), kind); form {
	case formText:
		var b strings.Builder
		fmt.Fprintf(&b, warning, d.Name, strings.ToLower(kind))
		text(&b)
		writeBody(w, http.StatusOK, textPlain, []byte(b.String()))
	case formObject:
		if version != newestPage {
			w.Header().Set("Warning", `299 - "this version of the page is deprecated, use `+newestPage+`"`)
		}
		writeJSON(w, http.StatusOK, object(zpage{kind, pageGroup + "/" + version, metadata{d.Name}}))
	default:
		http.Error(w, fmt.Sprintf("must accept text/plain, or application/json;v=%s;g=%s;as=%s", newestPage, pageGroup, kind), http.StatusNotAcceptable)
	}
}

const (
	pageGroup  = "config.k8s.io"
	newestPage = "v1beta1"
)

// form is the format of a response.
type form uint8

const (
	formNone form = iota
	formText
	formObject
)

// negotiate returns the first supported format of an Accept header. An empty header, or one that
// accepts everything, selects text.
func negotiate(accept, kind string) (version string, f form) {
	if strings.TrimSpace(accept) == "" {
		return "", formText
	}
	for clause := range strings.SplitSeq(accept, ",") {
		media, params, err := mime.ParseMediaType(clause)
		if err != nil {
			continue
		}
		switch media {
		case "text/plain", "text/*", "*/*":
			return "", formText
		case "application/json":
			version := params["v"]
			if params["g"] == pageGroup && params["as"] == kind && slices.Contains([]string{"v1alpha1", newestPage}, version) {
				return version, formObject
			}
		}
	}
	return "", formNone
}
