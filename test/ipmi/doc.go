// Package ipmi gives tests a management board: ipmi_sim of package openipmi behind a relay that can be slow or silent.
// The machine that it switches is a folder; nothing but files changes.
package ipmi
