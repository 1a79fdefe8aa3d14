//go:build !all

package applytest

// All is false: see the file for -tags all.
const All = false
