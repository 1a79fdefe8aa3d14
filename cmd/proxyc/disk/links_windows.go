package disk

// checkLinks returns nil: Windows has no directory where every user may create links.
func checkLinks(string) error { return nil }
