package diag

import (
	"bytes"
	"regexp"
)

// Template is the message for a file with actions of a template.
const Template = "contains a template that was not rendered: use the output of helm template or kustomize build"

// action matches an action of a template, up to its second brace, where YAML expects a value.
var action = regexp.MustCompile(`(?m)(?:^\s*|[:-] )\{\{`)

// TemplateOf returns the position of the first action of a template in a text that is not YAML, with
// line and column from 1. If there is none, column is 0.
func TemplateOf(text []byte) (line, column int) {
	at := action.FindIndex(text)
	if at == nil {
		return 0, 0
	}
	before := text[:at[1]-len("{{")]
	return 1 + bytes.Count(before, []byte("\n")), len(before) - bytes.LastIndexByte(before, '\n')
}
