//go:build all

package applytest

// All is whether tests run every case, with -tags all: tier 3. Otherwise they run those that they
// name: tier 1 in the root module, tier 2 in module e2e.
const All = true
