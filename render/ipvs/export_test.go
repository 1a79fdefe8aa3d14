package ipvs

// For the tests that also use the packages below this one.
var (
	Program         = program
	NoDetector      = noDetector
	RouteClusterIPs = routeClusterIPs
	OnePrefix       = onePrefix
	Admit           = admit
	Six             = six
	Text            = output
)
