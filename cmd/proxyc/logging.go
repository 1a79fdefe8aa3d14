package main

import (
	"io"
	"log/slog"
	"os"

	"k8s.io/klog/v2"

	"github.com/proxyc/proxyc/compiler/config"
)

// newLogger gives the log that the configuration asks for, whose level can be
// changed, and makes the API client write into it, too.
func newLogger(w io.Writer, c *config.Logging) (*slog.Logger, *slog.LevelVar) {
	level := &slog.LevelVar{}
	setVerbosity(level, c.Verbosity)
	options := &slog.HandlerOptions{Level: level}
	var h slog.Handler = slog.NewTextHandler(w, options)
	if c.Format == "json" {
		h = slog.NewJSONHandler(w, options)
	}
	log := slog.New(h)
	klog.SetSlogLogger(log)
	return log, level
}

// setVerbosity lets pass what klog has at verbosity v. Findings that are of no
// use while all goes well are debug messages, those of verbosity 4.
func setVerbosity(level *slog.LevelVar, v uint32) { level.Set(-slog.Level(v)) }

// calledAs are the words of the command line that the program's own name stands for.
func calledAs(name string) []string {
	if name == "kube-proxy" {
		return []string{"watch"}
	}
	return nil
}

// isSet tells whether a variable is set to something.
func isSet(name string) bool { return os.Getenv(name) != "" }
