package config

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// Logging holds the logging options that all Kubernetes components share
// (k8s.io/component-base). They shape the daemon's log and nothing else.
type Logging struct {
	Format         string         `json:"format,omitempty"`
	FlushFrequency FlushFrequency `json:"flushFrequency"`
	Verbosity      uint32         `json:"verbosity"`
	VModule        []VModule      `json:"vmodule,omitempty"`
	Options        LogOptions     `json:"options,omitempty"`
}

// FlushFrequency is a duration which may also be written as a number of
// nanoseconds, as the first releases of logging did.
type FlushFrequency struct{ metav1.Duration }

// VModule is a verbosity for the source files that a glob pattern matches.
type VModule struct {
	FilePattern string `json:"filePattern"`
	Verbosity   uint32 `json:"verbosity"`
}

// LogOptions are options of one log format each.
type LogOptions struct {
	Text LogStreams `json:"text,omitempty"`
	JSON LogStreams `json:"json,omitempty"`
}

// LogStreams says whether info messages get a stream of their own, and how
// much of it is buffered.
type LogStreams struct {
	SplitStream    bool     `json:"splitStream,omitempty"`
	InfoBufferSize Quantity `json:"infoBufferSize,omitempty"`
}

// Quantity is a number of bytes in Kubernetes notation: 512, 4K, 2Mi.
type Quantity string
