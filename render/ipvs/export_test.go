package ipvs

// For the tests that also use the packages below this one.
var (
	Program = program
	Text    = output
)
