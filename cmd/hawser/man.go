package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// manCommand prints the manual page, made of the help texts: they cannot drift apart.
func manCommand() *cobra.Command {
	return &cobra.Command{
		Use: "man", Short: "Print the manual page hawser(8)", Hidden: true, Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			manPage(cmd.OutOrStdout(), cmd.Root())
			return nil
		},
	}
}

func manPage(w io.Writer, root *cobra.Command) {
	fmt.Fprintf(w, ".TH HAWSER 8 \"\" \"hawser\" \"System administration\"\n.SH NAME\nhawser \\- %s\n", roff(strings.ToLower(root.Short[:1])+root.Short[1:]))
	fmt.Fprintf(w, ".SH SYNOPSIS\n.B hawser\n.RI [ FLAGS \"] \" COMMAND \" [\" ARGUMENTS ]\n.SH DESCRIPTION\n%s\n", roff(root.Long))
	for _, g := range root.Groups() {
		fmt.Fprintf(w, ".SH %s\n", strings.ToUpper(strings.TrimSuffix(g.Title, ":")))
		for _, c := range root.Commands() {
			if c.GroupID == g.ID {
				manCommandEntry(w, c)
			}
		}
	}
	fmt.Fprint(w, ".SH FLAGS OF ALL COMMANDS\n")
	manFlags(w, root.PersistentFlags())
	fmt.Fprint(w, ".SH FILES\n.TP\n.I /etc/hawser/hawser.yaml\nSettings of the node.\n.TP\n.I /etc/hawser/resources.d/*.yaml\nResources.\n"+
		".TP\n.I /etc/hawser/resources.d/*.res\nResources in the syntax of drbd.conf; *.conf there is read first.\n"+
		".TP\n.I /run/hawser\nSockets of agent and replicators.\n.TP\n.I /dev/hawser/RES/VOL\nThe devices of a Primary.\n"+
		".SH SEE ALSO\n.BR drbd.conf (5),\n.BR drbdmeta (8),\n.BR nbd\\-client (8)\n")
}

func manCommandEntry(w io.Writer, c *cobra.Command) {
	subs := c.Commands()
	if len(subs) > 0 {
		for _, s := range subs {
			manCommandEntry(w, s)
		}
		return
	}
	fmt.Fprintf(w, ".TP\n.B %s\n%s.\n", roff(strings.TrimPrefix(c.UseLine(), "hawser ")), roff(c.Short))
	if c.Long != "" {
		fmt.Fprintf(w, ".IP\n%s\n", roff(c.Long))
	}
	if c.LocalNonPersistentFlags().HasAvailableFlags() {
		fmt.Fprint(w, ".RS\n")
		manFlags(w, c.LocalNonPersistentFlags())
		fmt.Fprint(w, ".RE\n")
	}
}

func manFlags(w io.Writer, flags *pflag.FlagSet) {
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" || f.Name == "version" {
			return
		}
		name, text := pflag.UnquoteUsage(f)
		fmt.Fprintf(w, ".TP\n.B \\-\\-%s %s\n%s\n", roff(f.Name), name, roff(text))
	})
}

// roff escapes text; an empty line is a new paragraph.
func roff(text string) string {
	text = strings.NewReplacer(`\`, `\\`, "-", `\-`).Replace(text)
	lines := strings.Split(text, "\n")
	for i, l := range lines {
		switch {
		case l == "":
			lines[i] = ".PP"
		case strings.HasPrefix(l, "."), strings.HasPrefix(l, "'"):
			lines[i] = `\&` + l
		}
	}
	return strings.Join(lines, "\n")
}
