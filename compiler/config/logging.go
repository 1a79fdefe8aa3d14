package config

// Logging holds component-base logging options.
type Logging struct{}
