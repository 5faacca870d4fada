// Package conformance is what every fencing.Device must pass.
package conformance
