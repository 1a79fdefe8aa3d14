package review

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/sim"
	"github.com/proxyc/proxyc/render"
)

// WriteExplain writes a table of the origins of rules and elements: one per line, in three columns
// separated by tabs.
func WriteExplain(w io.Writer, rendered render.Rendered) error {
	return Buffered(w, func(w io.Writer) (err error) {
		rendered.Explain(func(entry render.Entry) { err = cmp.Or(err, WriteEntry(w, entry)) })
		return err
	})
}

// WriteEntry writes one line of that table.
func WriteEntry(w io.Writer, entry render.Entry) error {
	port := "-"
	if entry.Port != (ir.ServicePort{}) {
		port = entry.Port.String()
	}
	_, err := fmt.Fprintf(w, "%s\t%s\t%s\n", entry, port, entry.Origin)
	return err
}

// ShellWord quotes a word for a shell if required, such as names of files, and of interfaces on
// Windows.
func ShellWord(word string) string {
	plain := func(r rune) bool {
		return 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || strings.ContainsRune("_@%+=:,./[]-", r)
	}
	if word != "" && !strings.ContainsFunc(word, func(r rune) bool { return !plain(r) }) {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// FirstOf joins the first words of a list, at most most, and counts the others.
func FirstOf(list []string, most int) string {
	if more := len(list) - most; more > 0 {
		return strings.Join(list[:most], ", ") + fmt.Sprintf(" and %d more", more)
	}
	return strings.Join(list, ", ")
}

// FirstBy is FirstOf with a word for each element.
func FirstBy[T any](list []T, most int, word func(T) string) string {
	var words []string
	for _, one := range list {
		words = append(words, word(one))
	}
	return FirstOf(words, most)
}

// Counted returns a number of things, whose plural ends in s.
func Counted(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

// Buffered writes to w in large pieces.
func Buffered(w io.Writer, write func(io.Writer) error) error {
	b := bufio.NewWriterSize(w, 1<<16)
	if err := write(b); err != nil {
		return err
	}
	return b.Flush()
}

// WriteDocument writes JSON of a kind: apiVersion and kind, and then the fields of v, or its items
// if it is a list. HTML characters are not escaped.
func WriteDocument(w io.Writer, kind, indent string, v any) error {
	var fields bytes.Buffer
	enc := json.NewEncoder(&fields)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return err
	}
	rest, isObject := bytes.CutPrefix(fields.Bytes(), []byte("{"))
	document := fmt.Appendf(nil, `{"apiVersion":%q,"kind":%q,`, ir.APIVersion, kind)
	if isObject {
		document = append(document, rest...)
	} else {
		document = fmt.Appendf(document, `"items":%s}`, fields.Bytes())
	}
	enc = json.NewEncoder(w)
	enc.SetIndent("", indent)
	enc.SetEscapeHTML(false)
	return enc.Encode(json.RawMessage(document))
}

// PacketFlags returns the flags of trace for a packet.
func PacketFlags(pkt sim.Packet) string {
	from := "node"
	if !pkt.FromNode() {
		from = pkt.Src.String() + "@" + pkt.In
	}
	return fmt.Sprintf("--from %s --to %s", ShellWord(from), ir.Match{Addr: pkt.Dst, Protocol: pkt.Protocol, Port: pkt.Port})
}
