# What Doxygen reads of a public header: the status X-macro as documented enumerators, and
# "@retval A, B or C text" as Doxygen writes it: "@retval A,B,C text".
/^ +X\([A-Z_]+, [0-9]+, ".*"\)/ {
    row = $0
    sub(/^ +X\(/, "", row)
    sub(/"\).*/, "", row)
    split(row, part, /, *"?/)
    message = row
    sub(/^[^"]*"/, "", message)
    rows[++count] = sprintf("    MEMOPT_%s = %s, /**< %s. */", part[1], part[2], message)
}
/^ +MEMOPT_STATUS_LIST\(/ {
    print "/** @endcond */"
    for (i = 1; i <= count; i++)
        print rows[i]
    print "/** @cond INTERNAL */"
    next
}
/@retval [A-Z_]+(,| or)/ {
    line = $0
    if (line ~ /@retval [A-Z_#, or]+(,| or)$/ && (getline more) > 0) {
        sub(/^ *\* */, "", more)
        line = line " " more
    }
    while (match(line, /@retval [A-Z_,]+(,| or) #?MEMOPT_/)) {
        names = substr(line, RSTART, RLENGTH)
        sub(/(,| or) #?MEMOPT_$/, ",MEMOPT_", names)
        line = substr(line, 1, RSTART - 1) names substr(line, RSTART + RLENGTH)
    }
    print line
    next
}
{ print }
