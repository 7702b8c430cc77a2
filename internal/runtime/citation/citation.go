// Package citation finds the sources in the results of search tools: the pages of a web search, and the documents of a
// search in an organization's data. It reads the JSON and the texts that search servers return.
package citation

import (
	"iter"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/capstan-dev/capstan/internal/runtime/untrusted"
)

const (
	// Max is the maximum number of sources of one kind, in a result and in an answer.
	Max = 8
	// maxTitle is the maximum length of a title, in characters; a longer title is cut. maxURL is the maximum length of
	// a URL, in bytes; a page with a longer URL is left out, because a cut URL leads elsewhere.
	maxTitle = 256
	maxURL   = 1024
	// maxLocal is the maximum length of the name of a document, in characters.
	maxLocal = 512
	// maxSearched is the maximum number of bytes of a result that are searched. No tool server returns more.
	maxSearched = 8 << 20
	// maxLine is the maximum length of a line that is searched, in bytes.
	maxLine = 4 << 10
	// maxDepth is the maximum nesting of JSON objects that are sources.
	maxDepth = 8
)

// Page is a page of the web.
type Page struct {
	// Title is one line of at most 256 characters. It may be empty.
	Title string `json:"title,omitempty"`
	// URL is an absolute http or https URL of at most 1024 bytes, without credentials.
	URL string `json:"url"`
}

// Pages returns the pages in the result of a web search, in order and without repeats, at most Max.
func Pages(result string) []Page {
	return pagesIn(head(result))
}

// pages are the pages that can be cited. Only the first page with a URL is cited.
var pages = kind[Page]{
	clean: func(p Page) (Page, bool) {
		address, ok := citable(p.URL)
		if !ok {
			return Page{}, false
		}
		title, _ := untrusted.Cap(untrusted.StripLine(p.Title), maxTitle)
		return Page{Title: title, URL: address}, true
	},
	key: func(p Page) string { return p.URL },
}

// Merge returns the pages of lists that can be cited, in order and without repeats of a URL, at most Max.
func Merge(lists ...[]Page) []Page { return pages.merge(lists...) }

// documentNames are the members of a JSON object that name a document, best name first.
var documentNames = []string{"source", "uri", "path", "file", "url"}

// Documents returns the names of the documents in the result of a search of local data, in order and without repeats,
// at most Max.
func Documents(result string) []string {
	text := head(result)
	found := firstFew[string]{kind: documents}
	if visitObjects(text, documentNames, func(o *object) {
		if name := o.first(documentNames...); name != "" {
			found.add(o.at, name)
		}
	}) {
		return found.sort()
	}
	found = firstFew[string]{kind: documents}
	at := int64(0)
	for line := range lines(text) {
		at++
		if m := labelled.FindStringSubmatch(line); m != nil && isOneOf(m[1], documentNames...) {
			found.add(at, m[2])
			continue
		}
		for _, p := range links(line) {
			found.add(at, p.URL)
		}
	}
	return found.sort()
}

// documents are the names of documents that can be cited.
var documents = kind[string]{
	clean: func(name string) (string, bool) {
		name, _ = untrusted.Cap(untrusted.StripLine(name), maxLocal) // because a tool may return any text
		return name, name != ""
	},
	key: func(name string) string { return name },
}

// MergeDocuments returns the names of lists in order, each as one line and without repeats, at most Max.
func MergeDocuments(lists ...[]string) []string { return documents.merge(lists...) }

// head returns the part of a result that is searched.
func head(result string) string { return strings.TrimSpace(result[:min(len(result), maxSearched)]) }

var (
	// labelled is a line such as "URL: https://example.com", perhaps in a list and in bold type.
	labelled = regexp.MustCompile(`^\s*(?:[-*]\s+|\[?\d+[.)\]]\s*)?\**([A-Za-z]+)\**:\**\s*(.+?)\s*$`)
	// numbered is a line such as "1. Title of a page".
	numbered = regexp.MustCompile(`^\s*\[?\d+[.)\]]\s*\**(.+?)\**\s*$`)
	// alone is a line that has only a URL, perhaps in a list.
	alone = regexp.MustCompile(`^\s*(?:[-*]\s+|\[?\d+[.)\]]\s*)?(https?://\S+)\s*$`)
)

// The members of a JSON object that describe a page, best name first.
var (
	addressNames = []string{"url", "link", "href", "uri"}
	titleNames   = []string{"title", "name"}
	textNames    = []string{"snippet", "description", "content", "text"}
	pageNames    = slices.Concat(addressNames, titleNames, textNames)
)

// pagesIn returns the pages in a result, in order and without repeats, at most Max.
func pagesIn(text string) []Page {
	found := firstFew[Page]{kind: pages}
	if visitObjects(text, pageNames, func(o *object) {
		// An image or a site's icon has a URL, too, but neither a title nor a text.
		address, title := o.first(addressNames...), o.first(titleNames...)
		if address != "" && (title != "" || o.first(textNames...) != "") {
			found.add(o.at, Page{title, address})
		}
	}) {
		return found.sort()
	}
	found = firstFew[Page]{kind: pages}
	title, at := "", int64(0)
	for line := range lines(text) {
		at++
		m := labelled.FindStringSubmatch(line)
		linked := links(line)
		switch {
		case m != nil && isOneOf(m[1], "title"):
			title = m[2]
		case m != nil && isOneOf(m[1], "url", "link", "source") && isURL(m[2]):
			found.add(at, Page{title, m[2]})
			title = ""
		case alone.MatchString(line):
			found.add(at, Page{title, alone.FindStringSubmatch(line)[1]})
			title = ""
		case len(linked) > 0:
			for _, p := range linked {
				found.add(at, p)
			}
			title = ""
		case numbered.MatchString(line):
			title = numbered.FindStringSubmatch(line)[1]
		}
	}
	return found.sort()
}

// lines returns the lines of a text without line ends. It leaves out lines that are too long for a list of sources.
func lines(text string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for line := range strings.Lines(text) {
			if line = strings.TrimRight(line, "\r\n"); len(line) <= maxLine && !yield(line) {
				return
			}
		}
	}
}

// links returns the links in a line: at most Max Markdown links, and a URL in angle brackets with the text before it as
// the title.
func links(line string) []Page {
	var found []Page
	for rest := line; len(found) < Max; {
		title, after, ok := strings.Cut(rest, "](")
		if !ok {
			break
		}
		rest = after
		address, _, ok := strings.Cut(after, ")")
		if begin := strings.LastIndex(title, "["); ok && begin >= 0 && isURL(address) {
			found = append(found, Page{title[begin+1:], address})
		}
	}
	if title, after, ok := strings.Cut(line, "<"); ok && isURL(after) {
		if address, _, ok := strings.Cut(after, ">"); ok {
			found = append(found, Page{title, address})
		}
	}
	return found
}

func isOneOf(label string, names ...string) bool {
	return slices.ContainsFunc(names, func(name string) bool { return strings.EqualFold(name, label) })
}

func isURL(text string) bool {
	return strings.HasPrefix(text, "http://") || strings.HasPrefix(text, "https://")
}

// brackets escapes the characters that end a URL in angle brackets.
var brackets = strings.NewReplacer("<", "%3C", ">", "%3E")

// citable returns a URL without its fragment, and whether it can be cited.
func citable(text string) (address string, ok bool) {
	text = strings.TrimSpace(text)
	if len(text) > maxURL || untrusted.StripLine(text) != text {
		return "", false
	}
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.User != nil {
		return "", false
	}
	u.Fragment, u.RawFragment = "", ""
	address = brackets.Replace(u.String()) // a query keeps its characters
	return address, len(address) <= maxURL
}

// markdown escapes untrusted text for Markdown: the title of a page must not become a link or a picture.
var markdown = strings.NewReplacer(`\`, `\\`, "[", `\[`, "]", `\]`, "<", `\<`, ">", `\>`, "`", "\\`", "*", `\*`, "_", `\_`, "&", `\&`)

// List returns a list of sources in Markdown, without a line break at its end. It is empty if there are no sources.
func List(local []string, web []Page) string {
	if len(local)+len(web) == 0 {
		return ""
	}
	lines := []string{"Sources:"}
	for _, name := range local {
		lines = append(lines, "- "+markdown.Replace(name))
	}
	for _, p := range web {
		line := "- "
		if p.Title != "" {
			line += markdown.Replace(p.Title) + ": "
		}
		lines = append(lines, line+"<"+p.URL+">")
	}
	return strings.Join(lines, "\n")
}
