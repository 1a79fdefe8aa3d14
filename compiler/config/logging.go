package config

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// Logging holds the logging options that all Kubernetes components share
// (k8s.io/component-base). They affect only the daemon's log.
type Logging struct {
	Format         string         `json:"format,omitempty"`
	FlushFrequency FlushFrequency `json:"flushFrequency"`
	Verbosity      uint32         `json:"verbosity"`
	VModule        []VModule      `json:"vmodule,omitempty"`
	Options        LogOptions     `json:"options,omitempty"`
}

// FlushFrequency is a duration that may also be a number of nanoseconds, as in
// the first releases of logging.
type FlushFrequency struct{ metav1.Duration }

// VModule is the verbosity of source files that match a glob pattern.
type VModule struct {
	FilePattern string `json:"filePattern"`
	Verbosity   uint32 `json:"verbosity"`
}

// LogOptions are the options of each log format.
type LogOptions struct {
	Text LogStreams `json:"text,omitempty"`
	JSON LogStreams `json:"json,omitempty"`
}

// LogStreams configures a separate stream for info messages, and its buffer size.
type LogStreams struct {
	SplitStream    bool     `json:"splitStream,omitempty"`
	InfoBufferSize Quantity `json:"infoBufferSize,omitempty"`
}

// Quantity is a number of bytes in Kubernetes notation: 512, 4K, 2Mi.
type Quantity string
