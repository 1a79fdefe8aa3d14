package hns

// For the tests that also use the packages beneath this one.
var (
	Program   = program
	OnOverlay = overlay
)
