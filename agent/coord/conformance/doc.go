// Package conformance says what a coord.Backend must do; each one runs it.
package conformance
