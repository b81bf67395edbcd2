"""Tokens to tokens: queue, lanes, scheduler, runner and cache. Knows neither text nor gRPC.

The life of a sequence (one text of a request):

    submit      any thread adds it to the queue, or gets a refusal
    schedule    before each step the scheduler drops expired sequences and admits waiting ones that fit
    run         the runner encodes the admitted sources into free cache rows, grouped by length, then steps all rows
    update      the scheduler takes each row's new token; the last row fills the place of a finished one
    done        the sequence's callback receives it, with its tokens or its error
"""
