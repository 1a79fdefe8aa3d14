#compdef proxyc
# zsh completion for proxyc: source <(proxyc completion zsh), or a file _proxyc in a directory of $fpath
_proxyc() {
	local line word help
	local -a plain open plainHelp openHelp
	while IFS=$'\t' read -r word help; do
		[[ -n $help ]] && help="$word  -- $help" || help=$word
		if [[ $word == *= ]]; then
			open+=("$word") openHelp+=("$help")
		else
			plain+=("$word") plainHelp+=("$help")
		fi
	done < <(proxyc __complete "${(@)words[2,CURRENT]}" 2>/dev/null)
	if (( ${#plain} + ${#open} == 0 )); then
		_files
		return
	fi
	(( ${#plain} )) && compadd -l -d plainHelp -a plain
	(( ${#open} )) && compadd -S '' -l -d openHelp -a open
	return 0
}
if [[ $funcstack[1] == _proxyc ]]; then
	_proxyc "$@"
else
	compdef _proxyc proxyc
fi
